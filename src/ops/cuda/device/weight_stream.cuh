// What a warp does with a run of p64 weights: load a unit (all loads in flight at once), then feed tiles of 64 k to the
// tensor cores against activations x[col][k]. One struct per weight format with the same members:
//   Unit            registers of one unit
//   kTiles          tiles of 64 k per unit
//   kBytes          bytes of a unit
//   load(p, ok)     starts all loads
//   fragments(i, j, a)   the A fragment of k16 step j of tile i, decoded to bf16
//   kOut            factor that turns an accumulator into the value
#pragma once
#include "ops/cuda/device/p64.cuh"
#include "ops/cuda/device/prefetch.cuh"
#include "ops/cuda/device/ptx.cuh"

namespace mettle::p64 {

template <int TILES>
struct Nvfp4Stream {
  static constexpr int kTiles = TILES, kBytes = TILES * 576;
  static constexpr float kOut = kNvfp4Out;
  struct Unit {
    uint4 code[TILES];
    uint32_t scale[TILES / 2];  // two scale bytes (rows g, g + 8) per tile
  };
  __device__ static __forceinline__ void load(Unit& u, const uint8_t* p, int lane, bool ok) {
    if constexpr (TILES == 8) {
      const uint4 s = ptx::load_weight(p + 4096 + lane * 16, ok);
      u.scale[0] = s.x, u.scale[1] = s.y, u.scale[2] = s.z, u.scale[3] = s.w;
    } else {
#pragma unroll
      for (int i = 0; i < TILES / 2; ++i)
        u.scale[i] = ok ? *reinterpret_cast<const uint32_t*>(p + 512 * TILES + lane * 2 * TILES + 4 * i) : 0;
    }
#pragma unroll
    for (int i = 0; i < TILES; ++i) u.code[i] = ptx::load_weight(p + i * 512 + lane * 16, ok);
  }
  __device__ static __forceinline__ void fragments(const Unit& u, int i, int j, uint32_t* a) {
    const uint32_t both = u.scale[i / 2];
    const int byte = 2 * (i & 1);
    const uint32_t s0 = decode_scale(__byte_perm(both, 0u, byte | 4 << 4 | byte << 8 | 4 << 12));
    const uint32_t s1 = decode_scale(__byte_perm(both, 0u, (byte + 1) | 4 << 4 | (byte + 1) << 8 | 4 << 12));
    decode_codes(ptx::word(u.code[i], j), a);
    a[0] = ptx::mul_bf16x2(a[0], s0), a[1] = ptx::mul_bf16x2(a[1], s1);
    a[2] = ptx::mul_bf16x2(a[2], s0), a[3] = ptx::mul_bf16x2(a[3], s1);
  }
};

struct Bf16Stream {
  static constexpr int kTiles = 2, kBytes = 4096;
  static constexpr float kOut = 1.f;
  struct Unit {
    uint4 pair[8];
  };
  __device__ static __forceinline__ void load(Unit& u, const uint8_t* p, int lane, bool ok) {
#pragma unroll
    for (int i = 0; i < 8; ++i) u.pair[i] = ptx::load_weight(p + i * 512 + lane * 16, ok);
  }
  __device__ static __forceinline__ void fragments(const Unit& u, int i, int j, uint32_t* a) {
    const uint4& v = u.pair[4 * i + j];
    a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
  }
};

struct Fp8Stream {
  static constexpr int kTiles = 4, kBytes = 4096;
  static constexpr float kOut = 1.f;
  struct Unit {
    uint4 byte[8];
  };
  __device__ static __forceinline__ void load(Unit& u, const uint8_t* p, int lane, bool ok) {
#pragma unroll
    for (int i = 0; i < 8; ++i) u.byte[i] = ptx::load_weight(p + i * 512 + lane * 16, ok);
  }
  __device__ static __forceinline__ void fragments(const Unit& u, int i, int j, uint32_t* a) {
    const uint4& v = u.byte[2 * i + j / 2];
    decode_fp8(ptx::word(v, 2 * (j & 1)), &a[0], &a[1]);
    decode_fp8(ptx::word(v, 2 * (j & 1) + 1), &a[2], &a[3]);
#pragma unroll
    for (int p = 0; p < 4; ++p) a[p] = ptx::mul_bf16x2(a[p], kTwoTo120);
  }
};

// Activation fragments of one tile of 64 k for NT blocks of 8 columns: lane (g, t) reads 16 contiguous values of column
// g + 8 n. `row[n]` points to that column's k = 16 t of the tile; null columns read as zero.
template <int NT>
struct ActivationTile {
  uint32_t b[NT][8];
  __device__ __forceinline__ void load(const uint16_t* const* row, int64_t k, const bool* ok) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const uint4 u = ptx::load_activation(row[n] + k, ok[n]), v = ptx::load_activation(row[n] + k + 8, ok[n]);
      b[n][0] = u.x, b[n][1] = u.y, b[n][2] = u.z, b[n][3] = u.w;
      b[n][4] = v.x, b[n][5] = v.y, b[n][6] = v.z, b[n][7] = v.w;
    }
  }
};

template <class W, int NT>
__device__ __forceinline__ void multiply(float (*c)[4], const typename W::Unit& u, int i, const ActivationTile<NT>& x) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t a[4];
    W::fragments(u, i, j, a);
#pragma unroll
    for (int n = 0; n < NT; ++n) ptx::mma_16816(c[n], a, x.b[n][2 * j], x.b[n][2 * j + 1]);
  }
}

// One loaded unit against the columns `row`; k beyond k_end reads zero activations. ASK: tiles of activations that are
// asked for at once (registers: 8 NT each); one after the other each waits for L2 anew.
template <class W, int NT, int ASK = 1>
__device__ __forceinline__ void multiply_unit(float (*c)[4], const typename W::Unit& weights, int unit, int k_end,
                                              const uint16_t* const* row, const bool* ok, int lane) {
  constexpr int kAsk = ASK < W::kTiles ? ASK : W::kTiles;
#pragma unroll
  for (int first = 0; first < W::kTiles; first += kAsk) {
    ActivationTile<NT> x[kAsk];
#pragma unroll
    for (int i = 0; i < kAsk; ++i) {
      const int k = (unit * W::kTiles + first + i) * 64 + 16 * (lane % 4);
      bool in[NT];
#pragma unroll
      for (int n = 0; n < NT; ++n) in[n] = ok[n] && k < k_end;
      x[i].load(row, k, in);
    }
#pragma unroll
    for (int i = 0; i < kAsk; ++i) multiply<W, NT>(c, weights, first + i, x[i]);
  }
}

// The units first, first + step, ... of one tile row. MANY: more than one per warp, then the next unit's loads are in
// flight while this one is multiplied (twice the registers). Weights do not depend on the kernel before this one,
// activations do: `early` waits for it only after the first weights are under way, to registers, and those behind them
// to L2.
template <class W, int NT, bool MANY, int ASK = 1>
__device__ __forceinline__ void stream_tile_row(float (*c)[4], const uint8_t* weights, int units, int first, int step,
                                                int k_end, const uint16_t* const* row, const bool* ok, int lane,
                                                bool active, bool early) {
  typename W::Unit now;
  W::load(now, weights + int64_t{first} * W::kBytes, lane, active && first < units);
  if (MANY && early && active && first + step < units)
    for (int at = lane * 128; at < W::kBytes; at += 32 * 128)
      ptx::prefetch_l2(weights + int64_t{first + step} * W::kBytes + at);
  if (early) ptx::wait();
  if constexpr (!MANY) {
    if (first < units) multiply_unit<W, NT, ASK>(c, now, first, k_end, row, ok, lane);
  } else {
    typename W::Unit next;
    for (int u = first; u < units; u += step) {
      if (u + step < units) W::load(next, weights + int64_t{u + step} * W::kBytes, lane, active);
      multiply_unit<W, NT, ASK>(c, now, u, k_end, row, ok, lane);
      now = next;
    }
  }
}

// Blocks of eight warps of that kind on a multiprocessor, as their registers allow.
constexpr int stream_blocks(int nt, bool many) { return nt == 1 && !many ? 3 : nt == 4 && many ? 1 : 2; }

}  // namespace mettle::p64
