// Weights of the many-row kernels in shared memory: per format, registers of a lane's share of one tile row's 64 k and
// the A fragment of a k16 step.
#pragma once
#include "ops/cuda/device/p64.cuh"
#include "ops/cuda/device/ptx.cuh"

namespace mettle::cuda::tiles {

// kPair, kScales: bytes of codes and scales of 128 k; kUnit: of the largest unit. read() takes tile i of two from where
// codes and scales were copied apart, read_unit() tile i from a whole unit of unit_tiles.
struct Nvfp4 {
  static constexpr int kPair = 1024, kScales = 128, kUnit = 4608;
  static constexpr float kOut = p64::kNvfp4Out;
  struct Raw {
    uint4 code;
    uint32_t s0, s1;
  };
  __device__ static __forceinline__ Raw read(const uint8_t* codes, const uint8_t* scales, int i, int lane) {
    const uint32_t both = *reinterpret_cast<const uint32_t*>(scales + lane * 4);
    const uint32_t q = 2 * i;
    return {*reinterpret_cast<const uint4*>(codes + i * 512 + lane * 16),
            p64::decode_scale(__byte_perm(both, 0u, q | 4 << 4 | q << 8 | 4 << 12)),
            p64::decode_scale(__byte_perm(both, 0u, (q + 1) | 4 << 4 | (q + 1) << 8 | 4 << 12))};
  }
  __device__ static __forceinline__ Raw read_unit(const uint8_t* unit, int unit_tiles, int i, int lane) {
    const uint32_t two = *reinterpret_cast<const uint16_t*>(unit + 512 * unit_tiles + lane * 2 * unit_tiles + 2 * i);
    return {*reinterpret_cast<const uint4*>(unit + i * 512 + lane * 16),
            p64::decode_scale(__byte_perm(two, 0u, 0x4040)), p64::decode_scale(__byte_perm(two, 0u, 0x4141))};
  }
  __device__ static __forceinline__ void fragment(const Raw& r, int j, uint32_t* a) {
    p64::decode_codes(ptx::word(r.code, j), a);
    a[0] = ptx::mul_bf16x2(a[0], r.s0), a[1] = ptx::mul_bf16x2(a[1], r.s1);
    a[2] = ptx::mul_bf16x2(a[2], r.s0), a[3] = ptx::mul_bf16x2(a[3], r.s1);
  }
};

struct Fp8 {
  static constexpr int kPair = 2048, kScales = 0, kUnit = 4096;
  static constexpr float kOut = 1.f;
  struct Raw {
    uint4 byte[2];
  };
  __device__ static __forceinline__ Raw read(const uint8_t* codes, const uint8_t*, int i, int lane) {
    const auto* p = reinterpret_cast<const uint4*>(codes + i * 1024 + lane * 16);
    return {{p[0], p[32]}};
  }
  __device__ static __forceinline__ Raw read_unit(const uint8_t* unit, int, int i, int lane) {
    return read(unit, nullptr, i, lane);
  }
  __device__ static __forceinline__ void fragment(const Raw& r, int j, uint32_t* a) {
    const uint4& v = r.byte[j / 2];
    p64::decode_fp8(ptx::word(v, 2 * (j & 1)), &a[0], &a[1]);
    p64::decode_fp8(ptx::word(v, 2 * (j & 1) + 1), &a[2], &a[3]);
#pragma unroll
    for (int p = 0; p < 4; ++p) a[p] = ptx::mul_bf16x2(a[p], p64::kTwoTo120);
  }
};

struct Bf16 {
  static constexpr int kPair = 4096, kScales = 0, kUnit = 4096;
  static constexpr float kOut = 1.f;
  struct Raw {
    uint4 pair[4];
  };
  __device__ static __forceinline__ Raw read(const uint8_t* codes, const uint8_t*, int i, int lane) {
    const auto* p = reinterpret_cast<const uint4*>(codes + i * 2048 + lane * 16);
    return {{p[0], p[32], p[64], p[96]}};
  }
  __device__ static __forceinline__ Raw read_unit(const uint8_t* unit, int, int i, int lane) {
    return read(unit, nullptr, i, lane);
  }
  __device__ static __forceinline__ void fragment(const Raw& r, int j, uint32_t* a) {
    a[0] = r.pair[j].x, a[1] = r.pair[j].y, a[2] = r.pair[j].z, a[3] = r.pair[j].w;
  }
};

}  // namespace mettle::cuda::tiles
