// Attention of a few queries over the paged cache of their key/value head: 16 positions at a time, running maximum and
// sum. The 16 keys are transposed once for all queries, so that scores are formed with one key per lane; bfloat16 keys
// are transposed in pairs and widened in registers. V is read where it lies, with one dimension per lane. Positions are
// grouped by their absolute number: a query's result does not depend on its neighbours. Rows of E4M3 codes are widened
// to floats, 16 at a time, for all queries.
#pragma once
#include <cstring>
#include <type_traits>

#include "ops/cpu/kernels/elementwise.h"
#include "ops/cpu/kernels/kernels.h"

namespace mettle::cpu {
namespace {

// Without branches, so that loops over rows are vectorised; the last code of each sign stays NaN.
inline float e4m3_of(uint8_t code) {
  const int32_t magnitude = code & 0x7F;
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  uint32_t bits = (static_cast<uint32_t>(magnitude) << 20) + (120u << 23);
  bits = magnitude < 8 ? as_bits(subnormal) : bits;
  bits = magnitude == 0x7F ? 0x7FC00000u : bits;
  return as_float(bits | static_cast<uint32_t>(code & 0x80) << 24);
}
void widen_codes(const uint8_t* in, float* out, int n) {
  for (int i = 0; i < n; ++i) out[i] = e4m3_of(in[i]);
}
// out = in / scale as E4M3: nearest even, at most 448, NaN stays NaN.
void to_codes(const float* in, float scale, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = as_bits(in[i] / scale);
    uint32_t a = bits & 0x7FFFFFFFu;
    const bool is_nan = a > 0x7F800000u;
    a = a > 0x43E00000u ? 0x43E00000u : a;                                // 448
    const uint32_t small = as_bits(as_float(a) + 16384.f) - 0x46800000u;  // multiples of 2^-9
    const uint32_t large = ((a + 0x7FFFFu + (a >> 20 & 1u)) >> 20) - (120u << 3);
    uint32_t code = a < 0x3C800000u ? small : large;  // 2^-6
    code |= bits >> 24 & 0x80u;
    out[i] = static_cast<uint8_t>(is_nan ? 0x7Fu : code);
  }
}

inline float value_of(float v) { return v; }
inline float value_of(uint16_t v) { return as_float(static_cast<uint32_t>(v) << 16); }
inline Vec values_at(const float* p) { return Vec::load(p); }
inline Vec values_at(const uint16_t* p) { return Vec::widen(p); }

// keys[i * 16 + j] = dword i of row j.
template <class T>
inline void transpose_keys(const T* const* rows, int dim, uint32_t* keys) {
  const int dwords = dim * static_cast<int>(sizeof(T)) / 4;
  const uint8_t* from[16];
  for (int j = 0; j < 16; ++j) from[j] = reinterpret_cast<const uint8_t*>(rows[j]);
  int i = 0;
  for (; i + 16 <= dwords; i += 16) transpose16x16(from, i * 4, keys + i * 16);
  for (; i < dwords; ++i)
    for (int j = 0; j < 16; ++j) std::memcpy(keys + i * 16 + j, from[j] + i * 4, 4);
  if (sizeof(T) == 2 && dim % 2 == 1)
    for (int j = 0; j < 16; ++j) {
      uint16_t last;
      std::memcpy(&last, from[j] + i * 4, 2);
      keys[i * 16 + j] = last;
    }
}

// scores[i][j] = q[i] . key j, for R queries; the dimensions in ascending order.
template <class T, int R>
inline void score_block(const float* q, const uint32_t* keys, int dim, float* scores) {
  Vec sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = Vec::zero();
  const auto step = [&](Vec k, int d) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = Vec::fma(Vec::set(q[r * dim + d]), k, sum[r]);
  };
  if constexpr (sizeof(T) == 2) {
    for (int d = 0; d < dim; d += 2) {
      const Vec::Bits pair = Vec::load_bits(reinterpret_cast<const uint8_t*>(keys + d * 8));
      step(Vec::bf16_low(pair), d);
      if (d + 1 < dim) step(Vec::bf16_high(pair), d + 1);
    }
  } else {
    for (int d = 0; d < dim; ++d) step(Vec::load(reinterpret_cast<const float*>(keys) + d * 16), d);
  }
  for (int r = 0; r < R; ++r) sum[r].store(scores + r * 16);
}

// out[i][d] = out[i][d] * shrink[i] + sum over j of p[i][j] v[j][d]; R queries, 16 dimensions from d on.
template <class T, int R>
inline void value_block(const float* p, const float* shrink, const T* const* v, int d, int dim, float* out) {
  Vec sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = Vec::mul(Vec::load(out + r * dim + d), Vec::set(shrink[r]));
  for (int j = 0; j < 16; ++j) {
    const Vec vj = values_at(v[j] + d);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = Vec::fma(Vec::set(p[r * 16 + j]), vj, sum[r]);
  }
  for (int r = 0; r < R; ++r) sum[r].store(out + r * dim + d);
}

// One query at the end of what it may see: `count` keys, in the order of value_block. Keys behind are not touched, not
// even with a zero: they may hold what a neighbour left.
template <class T>
inline void value_tail(const float* p, float shrink, const T* const* v, int dim, int count, float* out) {
  int d = 0;
  for (; d + 16 <= dim; d += 16) {
    Vec sum = Vec::mul(Vec::load(out + d), Vec::set(shrink));
    for (int j = 0; j < count; ++j) sum = Vec::fma(Vec::set(p[j]), values_at(v[j] + d), sum);
    sum.store(out + d);
  }
  for (; d < dim; ++d) {
    float sum = out[d] * shrink;
    for (int j = 0; j < count; ++j) sum += p[j] * value_of(v[j][d]);
    out[d] = sum;
  }
}

// Rows base..base + count of a cache, widened into `room` where they are codes; behind them `zeros`, which are never
// multiplied with a value.
template <class T, class Stored>
inline void find_rows(const AttendArgs& a, const void* cache, int base, int count, const T* zeros, float* room,
                      const T** rows) {
  int block = base / a.block_size, offset = base % a.block_size;
  for (int j = 0; j < count; ++j) {
    const Stored* row =
        static_cast<const Stored*>(cache) + a.block_table[block] * a.block_stride + offset * a.key_stride;
    if constexpr (std::is_same_v<T, Stored>) {
      rows[j] = row;
    } else {
      widen_codes(row, room + j * a.head_dim, a.head_dim);
      rows[j] = room + j * a.head_dim;
    }
    if (++offset == a.block_size) offset = 0, ++block;
  }
  for (int j = count; j < 16; ++j) rows[j] = zeros;
}

inline float max_lanes(const float* lanes, float top) {
  float m[8];
  for (int i = 0; i < 8; ++i) m[i] = lanes[i] > lanes[i + 8] ? lanes[i] : lanes[i + 8];
  for (int i = 0; i < 4; ++i) m[i] = m[i] > m[i + 4] ? m[i] : m[i + 4];
  for (int i = 0; i < 4; ++i) top = m[i] > top ? m[i] : top;
  return top;
}

template <class T, class Stored = T>
void attend(const AttendArgs& a) {
  const int n = a.queries, dim = a.head_dim;
  const auto* q = static_cast<const float*>(a.q);
  auto* keys = reinterpret_cast<uint32_t*>(a.scratch);
  float* scores = a.scratch + 16 * dim + 16;
  T* zeros = reinterpret_cast<T*>(scores + kMaxQueries * 16);
  float *k_room = scores + kMaxQueries * 16 + dim, *v_room = k_room + 16 * dim;
  std::memset(zeros, 0, static_cast<size_t>(dim) * sizeof(T));
  float most[kMaxQueries], total[kMaxQueries], shrink[kMaxQueries];
  for (int i = 0; i < n; ++i) {
    most[i] = -__builtin_inff();
    total[i] = 0;
  }
  std::memset(a.out, 0, static_cast<size_t>(n) * static_cast<size_t>(dim) * sizeof(float));
  const T *k_rows[16], *v_rows[16];
  for (int base = 0; base < a.max_limit; base += 16) {
    const int count = a.max_limit - base < 16 ? a.max_limit - base : 16;
    find_rows<T, Stored>(a, a.k_cache, base, count, zeros, k_room, k_rows);
    find_rows<T, Stored>(a, a.v_cache, base, count, zeros, v_room, v_rows);
    for (int j = 0; std::is_same_v<T, Stored> && j < count; ++j)
      for (int64_t b = 0; b < dim * static_cast<int64_t>(sizeof(T)); b += 64)
        prefetch(reinterpret_cast<const uint8_t*>(v_rows[j]) + b);
    transpose_keys(k_rows, dim, keys);
    row_blocks<Vec::kPanelRows>(n, [&](auto r, int first) {
      score_block<T, decltype(r)::value>(q + first * dim, keys, dim, scores + first * 16);
    });
    for (int i = 0; i < n; ++i) {
      const int seen = a.limit[i] - base;
      if (seen <= 0) continue;
      float* s = scores + i * 16;
      for (int j = seen; j < 16; ++j) s[j] = -__builtin_inff();
      const float top = max_lanes(s, most[i]);
      for (int j = 0; j < 16; ++j) s[j] = exp_of(s[j] - top);
      shrink[i] = exp_of(most[i] - top);
      total[i] = total[i] * shrink[i] + sum_lanes(s);
      most[i] = top;
    }
    row_blocks<Vec::kPanelRows>(n, [&](auto r, int first) {
      constexpr int kR = decltype(r)::value;
      int least = 16;
      for (int i = first; i < first + kR; ++i) least = a.limit[i] - base < least ? a.limit[i] - base : least;
      if (least == 16 && dim % 16 == 0) {
        for (int d = 0; d < dim; d += 16)
          value_block<T, kR>(scores + first * 16, shrink + first, v_rows, d, dim, a.out + first * dim);
        return;
      }
      for (int i = first; i < first + kR; ++i) {
        const int seen = a.limit[i] - base < 16 ? a.limit[i] - base : 16;
        if (seen > 0) value_tail<T>(scores + i * 16, shrink[i], v_rows, dim, seen, a.out + i * dim);
      }
    });
  }
  for (int i = 0; i < n; ++i) {
    const float sum = total[i];
    for (int d = 0; d < dim; ++d) a.out[i * dim + d] /= sum;
  }
}

}  // namespace
}  // namespace mettle::cpu
