// Attention of a few queries over the paged cache of their key/value head: 16 positions at a time, running maximum and
// sum. The 16 keys are transposed once for all queries, so that scores are formed with one key per lane; V is read with
// one dimension per lane. Positions are grouped by their absolute number: a query's result does not depend on its
// neighbours.
#pragma once
#include <cstring>

#include "ops/cpu/kernels/elementwise.h"
#include "ops/cpu/kernels/kernels.h"

namespace mettle::cpu {
namespace {

inline void read_row(const float* from, float* to, int n) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}
inline void read_row(const uint16_t* from, float* to, int n) { widen(from, to, n); }

// scores[i][j] = q[i] . key j, for R queries.
template <int R>
inline void score_block(const float* q, const float* keys, int head_dim, float* scores) {
  Vec sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = Vec::zero();
  for (int d = 0; d < head_dim; ++d) {
    const Vec k = Vec::load(keys + d * 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = Vec::fma(Vec::set(q[r * head_dim + d]), k, sum[r]);
  }
  for (int r = 0; r < R; ++r) sum[r].store(scores + r * 16);
}

// out[i][d] = out[i][d] * shrink[i] + sum over j of p[i][j] v[j][d]; R queries, 16 dimensions.
template <int R>
inline void value_block(const float* p, const float* shrink, const float* v, int head_dim, float* out) {
  Vec sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r] = Vec::mul(Vec::load(out + r * head_dim), Vec::set(shrink[r]));
  for (int j = 0; j < 16; ++j) {
    const Vec vj = Vec::load(v + j * head_dim);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r] = Vec::fma(Vec::set(p[r * 16 + j]), vj, sum[r]);
  }
  for (int r = 0; r < R; ++r) sum[r].store(out + r * head_dim);
}

// Rows base..base + count of a cache as floats, zeros behind them.
template <class T>
inline void read_block(const AttendArgs& a, const void* cache, int base, int count, float* rows) {
  const int dim = a.head_dim;
  int block = base / a.block_size, offset = base % a.block_size;
  for (int j = 0; j < count; ++j) {
    const int64_t at = a.block_table[block] * a.block_stride + offset * a.key_stride;
    read_row(static_cast<const T*>(cache) + at, rows + j * dim, dim);
    if (++offset == a.block_size) offset = 0, ++block;
  }
  std::memset(rows + count * dim, 0, static_cast<size_t>(16 - count) * static_cast<size_t>(dim) * sizeof(float));
}

// One query at the end of what it may see: `count` keys, in the order of value_block. Keys behind are not touched, not
// even with a zero: they may hold what a neighbour left.
inline void value_tail(const float* p, float shrink, const float* v, int head_dim, int count, float* out) {
  int d = 0;
  for (; d + 16 <= head_dim; d += 16) {
    Vec sum = Vec::mul(Vec::load(out + d), Vec::set(shrink));
    for (int j = 0; j < count; ++j) sum = Vec::fma(Vec::set(p[j]), Vec::load(v + j * head_dim + d), sum);
    sum.store(out + d);
  }
  for (; d < head_dim; ++d) {
    float sum = out[d] * shrink;
    for (int j = 0; j < count; ++j) sum += p[j] * v[j * head_dim + d];
    out[d] = sum;
  }
}

template <class T>
void attend(const AttendArgs& a) {
  const int n = a.queries, dim = a.head_dim;
  float* v = a.scratch;  // first the rows of K, then those of V
  float* keys = v + 16 * dim;
  float* scores = keys + 16 * dim;
  float most[kMaxQueries], total[kMaxQueries], shrink[kMaxQueries];
  for (int i = 0; i < n; ++i) {
    most[i] = -__builtin_inff();
    total[i] = 0;
  }
  std::memset(a.out, 0, static_cast<size_t>(n) * static_cast<size_t>(dim) * sizeof(float));
  for (int base = 0; base < a.max_limit; base += 16) {
    const int count = a.max_limit - base < 16 ? a.max_limit - base : 16;
    read_block<T>(a, a.k_cache, base, count, v);
    transpose16(v, dim, keys, dim);
    read_block<T>(a, a.v_cache, base, count, v);
    row_blocks<Vec::kPanelRows>(n, [&](auto r, int first) {
      score_block<decltype(r)::value>(a.q + first * dim, keys, dim, scores + first * 16);
    });
    for (int i = 0; i < n; ++i) {
      const int seen = a.limit[i] - base;
      if (seen <= 0) continue;
      float* s = scores + i * 16;
      for (int j = seen; j < 16; ++j) s[j] = -__builtin_inff();
      float top = most[i];
      for (int j = 0; j < 16; ++j) top = s[j] > top ? s[j] : top;
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
          value_block<kR>(scores + first * 16, shrink + first, v + d, dim, a.out + first * dim + d);
        return;
      }
      for (int i = first; i < first + kR; ++i) {
        const int seen = a.limit[i] - base < 16 ? a.limit[i] - base : 16;
        if (seen > 0) value_tail(scores + i * 16, shrink[i], v, dim, seen, a.out + i * dim);
      }
    });
  }
  for (int i = 0; i < n; ++i)
    for (int d = 0; d < dim; ++d) a.out[i * dim + d] /= total[i];
}

}  // namespace
}  // namespace mettle::cpu
