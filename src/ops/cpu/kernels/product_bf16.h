// Products with bfloat16 activations by VDPBF16PS. Included after vec_avx512.h by the one source that has it.
//
// VDPBF16PS takes denormal inputs as zero and flushes denormal results. Nothing below 2^-126 is lost that the sum would
// show: codes times activations are formed without the block scale in gemv (the scale follows in float32), and in gemm
// a code times its scale is at least 2^-18 (exact in bfloat16: six significant bits).
#pragma once
#include <cstring>

#include "ops/cpu/kernels/product_out.h"

namespace mettle::cpu {
namespace {

using Pairs = __m512bh;  // two columns of 16 rows

inline Pairs pairs(__m512i x) { return reinterpret_cast<Pairs>(x); }

inline __m512i e2m1_table() {
  alignas(64) static constexpr uint16_t kTable[32] = {0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,
                                                      0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0,
                                                      0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,
                                                      0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0};
  return _mm512_load_si512(kTable);
}

inline __m512i pair_at(const uint16_t* x) {
  int32_t two;
  std::memcpy(&two, x, 4);
  return _mm512_set1_epi32(two);
}

// Columns k and k + 1 of a row; the second is zero where the row has ended.
inline __m512i pair_at_end(const uint16_t* x, int64_t k, int64_t cols) {
  return _mm512_set1_epi32(static_cast<int>(x[k] | (k + 1 < cols ? static_cast<uint32_t>(x[k + 1]) << 16 : 0u)));
}

// Calls use(weights of columns 2j and 2j + 1 of the group, j) for j = 0..7. Bits above a code do not matter: the
// permutation looks at five, and the table is there twice.
template <Weights W, class F>
inline __attribute__((always_inline)) void for_pairs(const uint8_t* tile, int64_t group, __m512i table, const F& use) {
  if constexpr (W == Weights::kNvfp4) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i bits = _mm512_loadu_si512(tile + group * 128 + half * 64);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        use(_mm512_permutexvar_epi16(_mm512_srli_epi32(bits, static_cast<unsigned>(4 * i)), table), half * 4 + i);
    }
  } else {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) use(_mm512_loadu_si512(tile + group * 512 + j * 64), j);
  }
}

template <Weights W, int R>
void gemv_tile_bf16(const TileMatrix& m, int64_t t, const InRows& in, const OutRows& out, int first) {
  constexpr int64_t kGroupBytes = W == Weights::kNvfp4 ? 128 : 512;
  const uint8_t* tile = m.tile(t);
  const uint8_t* scales = m.scales + t * m.k_padded;
  const __m512i table = e2m1_table();
  const uint16_t* x[R];
  __m512 sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    x[r] = in_row<uint16_t>(in, first + r);
    sum[r] = _mm512_setzero_ps();
  }
  const int64_t groups = m.cols / 16;
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC unroll 8
    for (int64_t b = 0; b < kGroupBytes; b += 64) prefetch(tile + g * kGroupBytes + b + kAhead);
    if (W == Weights::kNvfp4) prefetch(scales + g * 16 + kAhead / 4);
    __m512 part[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) part[r] = _mm512_setzero_ps();
    for_pairs<W>(
        tile, g, table, [&](__m512i w, int j) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r)
            part[r] = _mm512_dpbf16_ps(part[r], pairs(w), pairs(pair_at(x[r] + g * 16 + 2 * j)));
        });
    if (W == Weights::kNvfp4 || m.k_scale != nullptr) {
      const __m512 scale = W == Weights::kNvfp4 ? Vec::e4m3(scales + g * 16).v
                                                : _mm512_loadu_ps(m.k_scale + (t * m.k_blocks + g / 8) * 16);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = _mm512_fmadd_ps(scale, part[r], sum[r]);
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = _mm512_add_ps(part[r], sum[r]);
    }
  }
  if constexpr (W == Weights::kBf16) {
    if (groups * 16 < m.cols) {
      for (int r = 0; r < R; ++r) {
        __m512 part = _mm512_setzero_ps();
        for (int64_t k = groups * 16; k < m.cols; k += 2)
          part = _mm512_dpbf16_ps(part, pairs(_mm512_loadu_si512(tile + k * 32)), pairs(pair_at_end(x[r], k, m.cols)));
        const __m512 scale = m.k_scale != nullptr ? _mm512_loadu_ps(m.k_scale + (t * m.k_blocks + groups / 8) * 16)
                                                  : _mm512_set1_ps(1.f);
        sum[r] = _mm512_fmadd_ps(scale, part, sum[r]);
      }
    }
  }
  const Vec row_scale = row_scale_of(m, t);
  for (int r = 0; r < R; ++r) put(m, t, out, first + r, {sum[r]}, row_scale);
}

// Two tiles at a time for few rows: an activation is broadcast once for both, and decoding the one overlaps the other's
// products. Two streams a tile apart stop the hardware's prefetch, so the next two tiles are asked for in the order in
// which they lie, into the second level.
template <int R>
void gemv_pair_bf16(const TileMatrix& m, int64_t t, const InRows& in, const OutRows& out, int first) {
  const uint8_t* tile[2] = {m.tile(t), m.tile(t + 1)};
  const uint8_t* scales[2] = {m.scales + t * m.k_padded, m.scales + (t + 1) * m.k_padded};
  const uint8_t *next_tile = m.tile(t + 2), *next_scales = m.scales + (t + 2) * m.k_padded;
  const __m512i table = e2m1_table();
  const uint16_t* x[R];
  __m512 sum[2][R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    x[r] = in_row<uint16_t>(in, first + r);
    sum[0][r] = sum[1][r] = _mm512_setzero_ps();
  }
  const int64_t groups = m.cols / 16;
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC unroll 4
    for (int64_t b = 0; b < 256; b += 64) prefetch_second_level(next_tile + g * 256 + b);
    if (g % 2 == 0) prefetch_second_level(next_scales + g * 32);
    __m512 part[2][R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) part[0][r] = part[1][r] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i bits[2] = {_mm512_loadu_si512(tile[0] + g * 128 + half * 64),
                               _mm512_loadu_si512(tile[1] + g * 128 + half * 64)};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const auto shift = static_cast<unsigned>(4 * i);
        const __m512i w0 = _mm512_permutexvar_epi16(_mm512_srli_epi32(bits[0], shift), table),
                      w1 = _mm512_permutexvar_epi16(_mm512_srli_epi32(bits[1], shift), table);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          const Pairs xk = pairs(pair_at(x[r] + g * 16 + 8 * half + 2 * i));
          part[0][r] = _mm512_dpbf16_ps(part[0][r], pairs(w0), xk);
          part[1][r] = _mm512_dpbf16_ps(part[1][r], pairs(w1), xk);
        }
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512 scale = Vec::e4m3(scales[i] + g * 16).v;
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[i][r] = _mm512_fmadd_ps(scale, part[i][r], sum[i][r]);
    }
  }
  for (int i = 0; i < 2; ++i) {
    const Vec row_scale = row_scale_of(m, t + i);
    for (int r = 0; r < R; ++r) put(m, t + i, out, first + r, {sum[i][r]}, row_scale);
  }
}

inline constexpr int kPairRows = 4;  // with more, the products alone take as long: a pair has nothing to win

// Tiles t and, where `two`, t + 1.
template <Weights W>
void gemv_tiles_bf16(const TileMatrix& m, int64_t t, bool two, const InRows& in, const OutRows& out) {
  row_blocks<8>(in.n, [&](auto count, int first) {
    constexpr int kR = decltype(count)::value;
    if constexpr (W == Weights::kNvfp4 && kR <= kPairRows) {
      if (two) return gemv_pair_bf16<kR>(m, t, in, out, first);
    }
    gemv_tile_bf16<W, kR>(m, t, in, out, first);
    if (two) gemv_tile_bf16<W, kR>(m, t + 1, in, out, first);
  });
}

void gemv_bf16(const TileMatrix& m, int64_t tile, int tiles, const void*, const InRows& in, const OutRows& out) {
  for (int64_t t = tile; t < tile + tiles; t += 2) {
    const bool two = t + 1 < tile + tiles;
    if (m.weights == Weights::kNvfp4) {
      gemv_tiles_bf16<Weights::kNvfp4>(m, t, two, in, out);
    } else {
      gemv_tiles_bf16<Weights::kBf16>(m, t, two, in, out);
    }
  }
}

inline constexpr int kPanelTilesBf16 = 2;

// nvfp4 is decoded to bf16 pairs [tile][k/2][16][2], the layout that bf16 weights have anyway.
size_t panel_bytes_bf16(const TileMatrix& m) {
  return m.weights == Weights::kNvfp4 ? static_cast<size_t>(m.cols) * 32 * kPanelTilesBf16 : 0;
}

void prepare_bf16(const TileMatrix& m, int64_t tile, int tiles, void* panel) {
  if (m.weights != Weights::kNvfp4) return;
  const __m512i table = e2m1_table();
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  for (int i = 0; i < tiles; ++i) {
    uint8_t* p = static_cast<uint8_t*>(panel) + i * m.cols * 32;
    const uint8_t* from = m.tile(tile + i);
    const uint8_t* scales = m.scales + (tile + i) * m.k_padded;
    for (int64_t g = 0; g < m.cols / 16; ++g) {
      const __m512 scale = Vec::e4m3(scales + g * 16).v;
      for_pairs<Weights::kNvfp4>(
          from, g, table, [&](__m512i w, int j) __attribute__((always_inline)) {
            const __m512 low = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(w, 16)), scale);
            const __m512 up = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(w, high)), scale);
            _mm512_store_si512(p + (g * 8 + j) * 64, _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16),
                                                                     _mm512_castps_si512(up)));
          });
    }
  }
}

template <int T, int R>
void gemm_block_bf16(const TileMatrix& m, int64_t tile, const uint8_t* panel, const InRows& in, const OutRows& out,
                     int first) {
  const int64_t tile_stride = m.k_padded * 32;
  const uint16_t* x[R];
  __m512 sum[T][R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) x[r] = in_row<uint16_t>(in, first + r);
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[t][r] = _mm512_setzero_ps();
  const auto step = [&](int64_t k, auto&& pair) __attribute__((always_inline)) {
    __m512i w[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) w[t] = _mm512_loadu_si512(panel + t * tile_stride + k * 32);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Pairs xk = pairs(pair(x[r]));
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) sum[t][r] = _mm512_dpbf16_ps(sum[t][r], pairs(w[t]), xk);
    }
  };
  const auto run = [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    int64_t k = begin;
    for (; k + 2 <= end; k += 2)
      step(
          k, [k](const uint16_t* p) __attribute__((always_inline)) { return pair_at(p + k); });
    if (k < end) step(k, [k, &m](const uint16_t* p) { return pair_at_end(p, k, m.cols); });
  };
  if (m.k_scale == nullptr) {
    run(0, m.cols);
  } else {
    __m512 total[T][R];
    for (int t = 0; t < T; ++t)
      for (int r = 0; r < R; ++r) total[t][r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < m.k_blocks; ++b) {
      run(b * 128, b * 128 + 128 < m.cols ? b * 128 + 128 : m.cols);
      for (int t = 0; t < T; ++t) {
        const __m512 scale = _mm512_loadu_ps(m.k_scale + ((tile + t) * m.k_blocks + b) * 16);
        for (int r = 0; r < R; ++r) {
          total[t][r] = _mm512_fmadd_ps(scale, sum[t][r], total[t][r]);
          sum[t][r] = _mm512_setzero_ps();
        }
      }
    }
    for (int t = 0; t < T; ++t)
      for (int r = 0; r < R; ++r) sum[t][r] = total[t][r];
  }
  for (int t = 0; t < T; ++t) {
    const Vec row_scale = row_scale_of(m, tile + t);
    for (int r = 0; r < R; ++r) put(m, tile + t, out, first + r, {sum[t][r]}, row_scale);
  }
}

void gemm_bf16(const TileMatrix& m, int64_t tile, int tiles, const void* panel, const InRows& in, const OutRows& out) {
  const uint8_t* p = m.weights == Weights::kNvfp4 ? static_cast<const uint8_t*>(panel) : m.tile(tile);
  row_blocks<8>(in.n, [&](auto count, int first) {
    constexpr int kR = decltype(count)::value;
    if (tiles == 2) return gemm_block_bf16<2, kR>(m, tile, p, in, out, first);
    for (int i = 0; i < tiles; ++i) gemm_block_bf16<1, kR>(m, tile + i, p + i * m.k_padded * 32, in, out, first);
  });
}

}  // namespace
}  // namespace mettle::cpu
