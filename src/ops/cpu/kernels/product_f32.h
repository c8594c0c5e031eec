// Products with float activations, for any Vec. Included by one source per instruction set, after its vec_*.h.
//
// gemv: K runs in groups of 16; each group is a chain of fused multiply-adds from zero, then joins the sum of its
// output with the group's scale: sum = fma(scale, group, sum). The chains of different groups overlap in the processor,
// and the order inside an output is the same for every number of rows. gemm: the chunk is decoded to floats
// [tile][k][16], scale included (exact; times k_scale: rounded as in element()).
#pragma once
#include <cstring>

#include "ops/cpu/kernels/product_out.h"

namespace mettle::cpu {
namespace {

template <Weights W>
inline Vec scale_of_group(const TileMatrix& m, int64_t tile, int64_t group) {
  if constexpr (W == Weights::kNvfp4) return Vec::e4m3(m.scales + tile * m.k_padded + group * 16);
  if (m.k_scale == nullptr) return Vec::set(1.f);
  return Vec::load(m.k_scale + (tile * m.k_blocks + group / 8) * 16);
}

// Calls use(weights of column k as Vec, k) for the 16 columns of a group, in the order in which they are stored.
template <Weights W, class F>
inline __attribute__((always_inline)) void for_group(const uint8_t* tile, int64_t group, const F& use) {
  if constexpr (W == Weights::kNvfp4) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Vec::Bits bits = Vec::load_bits(tile + group * 128 + half * 64);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) use(Vec::e2m1(bits, j / 2 + 4 * (j % 2)), half * 8 + j);
    }
  } else if constexpr (W == Weights::kBf16) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const Vec::Bits bits = Vec::load_bits(tile + group * 512 + j * 64);
      use(Vec::bf16_low(bits), 2 * j);
      use(Vec::bf16_high(bits), 2 * j + 1);
    }
  } else {
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) use(Vec::load(reinterpret_cast<const float*>(tile) + (group * 16 + j) * 16), j);
  }
}

// One column of the last, incomplete group (bf16 and f32 weights only).
template <Weights W>
inline Vec column(const uint8_t* tile, int64_t k) {
  if constexpr (W == Weights::kF32) return Vec::load(reinterpret_cast<const float*>(tile) + k * 16);
  const Vec::Bits bits = Vec::load_bits(tile + k / 2 * 64);
  return k % 2 == 0 ? Vec::bf16_low(bits) : Vec::bf16_high(bits);
}

template <Weights W, int R>
void gemv_tile(const TileMatrix& m, int64_t t, const InRows& in, const OutRows& out, int first) {
  constexpr int64_t kGroupBytes = W == Weights::kNvfp4 ? 128 : W == Weights::kBf16 ? 512 : 1024;
  const uint8_t* tile = m.tile(t);
  const float* x[R];
  Vec sum[R];
  for (int r = 0; r < R; ++r) {
    x[r] = in_row<float>(in, first + r);
    sum[r] = Vec::zero();
  }
  const int64_t groups = m.cols / 16;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t b = 0; b < kGroupBytes; b += 64) prefetch(tile + g * kGroupBytes + b + kAhead);
    Vec part[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) part[r] = Vec::zero();
    for_group<W>(
        tile, g, [&](Vec w, int j) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) part[r] = Vec::fma(Vec::set(x[r][g * 16 + j]), w, part[r]);
        });
    const Vec scale = scale_of_group<W>(m, t, g);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = Vec::fma(scale, part[r], sum[r]);
  }
  if constexpr (W != Weights::kNvfp4) {
    if (groups * 16 < m.cols) {
      const Vec scale = scale_of_group<W>(m, t, groups);
      for (int r = 0; r < R; ++r) {
        Vec part = Vec::zero();
        for (int64_t k = groups * 16; k < m.cols; ++k) part = Vec::fma(Vec::set(x[r][k]), column<W>(tile, k), part);
        sum[r] = Vec::fma(scale, part, sum[r]);
      }
    }
  }
  const Vec row_scale = row_scale_of(m, t);
  for (int r = 0; r < R; ++r) put(m, t, out, first + r, sum[r], row_scale);
}

template <Weights W>
void gemv_tiles(const TileMatrix& m, int64_t tile, int tiles, const InRows& in, const OutRows& out) {
  for (int64_t t = tile; t < tile + tiles; ++t)
    row_blocks<Vec::kRows>(in.n,
                           [&](auto count, int first) { gemv_tile<W, decltype(count)::value>(m, t, in, out, first); });
}

void gemv_f32(const TileMatrix& m, int64_t tile, int tiles, const void*, const InRows& in, const OutRows& out) {
  switch (m.weights) {
    case Weights::kNvfp4:
      return gemv_tiles<Weights::kNvfp4>(m, tile, tiles, in, out);
    case Weights::kBf16:
      return gemv_tiles<Weights::kBf16>(m, tile, tiles, in, out);
    case Weights::kF32:
      return gemv_tiles<Weights::kF32>(m, tile, tiles, in, out);
  }
}

template <Weights W>
void decode_f32(const TileMatrix& m, int64_t t, float* panel) {
  const uint8_t* tile = m.tile(t);
  const int64_t groups = m.cols / 16;
  for (int64_t g = 0; g < groups; ++g) {
    const Vec scale = scale_of_group<W>(m, t, g);
    for_group<W>(
        tile,
        g, [&](Vec w, int j) __attribute__((always_inline)) { Vec::mul(w, scale).store(panel + (g * 16 + j) * 16); });
  }
  if constexpr (W != Weights::kNvfp4)
    for (int64_t k = groups * 16; k < m.cols; ++k)
      Vec::mul(column<W>(tile, k), scale_of_group<W>(m, t, groups)).store(panel + k * 16);
}

size_t panel_bytes_f32(const TileMatrix& m) {
  return m.weights == Weights::kF32 ? 0 : static_cast<size_t>(m.cols) * 64 * Vec::kPanelTiles;
}

void prepare_f32(const TileMatrix& m, int64_t tile, int tiles, void* panel) {
  for (int i = 0; i < tiles; ++i) {
    float* p = static_cast<float*>(panel) + i * m.cols * 16;
    if (m.weights == Weights::kNvfp4) decode_f32<Weights::kNvfp4>(m, tile + i, p);
    if (m.weights == Weights::kBf16) decode_f32<Weights::kBf16>(m, tile + i, p);
  }
}

template <int T, int R>
void gemm_block(const TileMatrix& m, int64_t tile, const float* panel, const InRows& in, const OutRows& out,
                int first) {
  const float* x[R];
  Vec sum[T][R];
  for (int r = 0; r < R; ++r) x[r] = in_row<float>(in, first + r);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[t][r] = Vec::zero();
  for (int64_t k = 0; k < m.cols; ++k) {
    Vec w[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) w[t] = Vec::load(panel + (t * m.cols + k) * 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec xk = Vec::set(x[r][k]);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[t][r] = Vec::fma(xk, w[t], sum[t][r]);
    }
  }
  for (int t = 0; t < T; ++t) {
    const Vec row_scale = row_scale_of(m, tile + t);
    for (int r = 0; r < R; ++r) put(m, tile + t, out, first + r, sum[t][r], row_scale);
  }
}

void gemm_f32(const TileMatrix& m, int64_t tile, int tiles, const void* panel, const InRows& in, const OutRows& out) {
  if (m.weights == Weights::kF32) panel = m.tile(tile);
  const float* p = static_cast<const float*>(panel);
  row_blocks<Vec::kPanelRows>(in.n, [&](auto count, int first) {
    constexpr int kR = decltype(count)::value;
    if (tiles == 2 && Vec::kPanelTiles >= 2) return gemm_block<2, kR>(m, tile, p, in, out, first);
    for (int i = 0; i < tiles; ++i) gemm_block<1, kR>(m, tile + i, p + i * m.cols * 16, in, out, first);
  });
}

}  // namespace
}  // namespace mettle::cpu
