// The gated delta rule, row by row, 64 (then 16, then 1) columns of the state at a time.
//   S <- decay S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q
#pragma once
#include "ops/cpu/kernels/kernels.h"

namespace mettle::cpu {
namespace {

template <int C>
inline void delta_columns(const DeltaArgs& a, int64_t t, int column) {
  const float* q = a.q + t * a.row_stride;
  const float* k = a.k + t * a.row_stride;
  float* state = a.state + column;
  const Vec decay = Vec::set(a.decay[t * a.gate_stride]), beta = Vec::set(a.beta[t * a.gate_stride]);
  Vec u[C], o[C];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) u[c] = o[c] = Vec::zero();
  for (int i = 0; i < a.dk; ++i) {
    const Vec ki = Vec::set(k[i]);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const Vec s = Vec::mul(Vec::load(state + i * a.dv + c * 16), decay);
      s.store(state + i * a.dv + c * 16);
      u[c] = Vec::fma(ki, s, u[c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) {
    const Vec v = Vec::load(a.v + t * a.row_stride + column + c * 16);
    u[c] = Vec::mul(beta, Vec::fma(u[c], Vec::set(-1.f), v));
  }
  for (int i = 0; i < a.dk; ++i) {
    const Vec ki = Vec::set(k[i]), qi = Vec::set(q[i]);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const Vec s = Vec::fma(ki, u[c], Vec::load(state + i * a.dv + c * 16));
      s.store(state + i * a.dv + c * 16);
      o[c] = Vec::fma(qi, s, o[c]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c) o[c].store(a.out + t * a.out_stride + column + c * 16);
}

inline void delta_column(const DeltaArgs& a, int64_t t, int column) {
  const float* q = a.q + t * a.row_stride;
  const float* k = a.k + t * a.row_stride;
  float* state = a.state + column;
  float read = 0, o = 0;
  for (int i = 0; i < a.dk; ++i) {
    state[i * a.dv] *= a.decay[t * a.gate_stride];
    read += k[i] * state[i * a.dv];
  }
  const float u = a.beta[t * a.gate_stride] * (a.v[t * a.row_stride + column] - read);
  for (int i = 0; i < a.dk; ++i) {
    state[i * a.dv] += k[i] * u;
    o += q[i] * state[i * a.dv];
  }
  a.out[t * a.out_stride + column] = o;
}

// Columns are independent: each strip of the state stays in the first-level cache for all rows.
void delta(const DeltaArgs& a) {
  int column = 0;
  for (; column + 64 <= a.dv; column += 64)
    for (int64_t t = 0; t < a.rows; ++t) delta_columns<4>(a, t, column);
  for (; column + 16 <= a.dv; column += 16)
    for (int64_t t = 0; t < a.rows; ++t) delta_columns<1>(a, t, column);
  for (; column < a.dv; ++column)
    for (int64_t t = 0; t < a.rows; ++t) delta_column(a, t, column);
}

}  // namespace
}  // namespace mettle::cpu
