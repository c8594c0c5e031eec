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

template <class T>
void attend(const AttendArgs& a) {
  const int n = a.queries, dim = a.head_dim;
  float* v = a.scratch;
  float* keys = v + 16 * dim;  // rows first, then [dim][16]
  float* scores = keys + 16 * dim;
  float most[kMaxQueries], total[kMaxQueries], shrink[kMaxQueries];
  for (int i = 0; i < n; ++i) {
    most[i] = -__builtin_inff();
    total[i] = 0;
  }
  for (int i = 0; i < n * dim; ++i) a.out[i] = 0;
  for (int base = 0; base < a.max_limit; base += 16) {
    const int count = a.max_limit - base < 16 ? a.max_limit - base : 16;
    // The rows of K stand where V will be: V is read after the transposition.
    for (int j = 0; j < 16; ++j) {
      if (j >= count) {
        for (int d = 0; d < dim; ++d) v[j * dim + d] = 0;
        continue;
      }
      const int p = base + j;
      const int64_t at = a.block_table[p / a.block_size] * a.block_stride + p % a.block_size * a.key_stride;
      read_row(static_cast<const T*>(a.k_cache) + at, v + j * dim, dim);
    }
    transpose16(v, dim, keys, dim);
    for (int j = 0; j < count; ++j) {
      const int p = base + j;
      const int64_t at = a.block_table[p / a.block_size] * a.block_stride + p % a.block_size * a.key_stride;
      read_row(static_cast<const T*>(a.v_cache) + at, v + j * dim, dim);
    }
    for (int j = count; j < 16; ++j)
      for (int d = 0; d < dim; ++d) v[j * dim + d] = 0;
    row_blocks<Vec::kPanelRows>(n, [&](auto r, int first) {
      score_block<decltype(r)::value>(a.q + first * dim, keys, dim, scores + first * 16);
    });
    for (int i = 0; i < n; ++i) {
      float* s = scores + i * 16;
      float top = most[i];
      for (int j = 0; j < 16; ++j) {
        if (base + j >= a.limit[i]) s[j] = -__builtin_inff();
        top = s[j] > top ? s[j] : top;
      }
      if (top == -__builtin_inff()) top = 0;  // nothing visible yet: exp gives zeros
      for (int j = 0; j < 16; ++j) s[j] = exp_of(s[j] - top);
      shrink[i] = exp_of(most[i] - top);
      total[i] = total[i] * shrink[i] + sum_lanes(s);
      most[i] = top;
    }
    row_blocks<Vec::kPanelRows>(n, [&](auto r, int first) {
      for (int d = 0; d + 16 <= dim; d += 16)
        value_block<decltype(r)::value>(scores + first * 16, shrink + first, v + d, dim, a.out + first * dim + d);
      for (int d = dim / 16 * 16; d < dim; ++d)
        for (int i = first; i < first + decltype(r)::value; ++i) {
          float sum = a.out[i * dim + d] * shrink[i];
          for (int j = 0; j < 16; ++j) sum += scores[i * 16 + j] * v[j * dim + d];
          a.out[i * dim + d] = sum;
        }
    });
  }
  for (int i = 0; i < n; ++i)
    for (int d = 0; d < dim; ++d) a.out[i * dim + d] /= total[i];
}

}  // namespace
}  // namespace mettle::cpu
