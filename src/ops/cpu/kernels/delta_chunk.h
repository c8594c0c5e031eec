// The gated delta rule in chunks of 16 rows (the WY form): what a row reads of the state before the chunk comes from
// one product of all its rows with that state, what it reads of the rows before it from their 16 x 16 products, and the
// state takes all writes of the chunk at once. Everything is float32. With b_t the decay since the chunk began, d_tj
// that since row j:
//   u_t = beta_t (v_t - b_t S^T k_t - sum_{j < t} d_tj (k_t . k_j) u_j)
//   o_t = b_t S^T q_t + sum_{j <= t} d_tj (q_t . k_j) u_j
//   S  <- b_last S + sum_j d_last,j k_j u_j^T
// Decays are multiplied, not divided: one of zero forgets all that was before.
#pragma once
#include <cstring>

#include "ops/cpu/kernels/attend_tile.h"
#include "ops/cpu/kernels/delta.h"

namespace mettle::cpu {
namespace {

struct DeltaChunk {
  const DeltaArgs& a;
  int columns;                          // of the state, a multiple of 16
  float *q, *k;                         // [16][dk]
  float* k_lanes;                       // [dk][16]
  float *k_by_k, *q_by_k;               // [16][16] row t, key j
  float *of_k, *of_q, *u;               // [16][columns]: S^T k, S^T q, the writes
  float since[kDeltaRows][kDeltaRows];  // d_tj
  float begin[kDeltaRows];              // b_t

  explicit DeltaChunk(const DeltaArgs& args) : a(args), columns(args.dv / 16 * 16) {
    float* at = a.scratch;
    const auto take = [&](int64_t floats) { return at += floats, at - floats; };
    q = take(kDeltaRows * a.dk);
    k = take(kDeltaRows * a.dk);
    k_lanes = take(kDeltaRows * a.dk);
    k_by_k = take(kDeltaRows * kDeltaRows);
    q_by_k = take(kDeltaRows * kDeltaRows);
    of_k = take(kDeltaRows * columns);
    of_q = take(kDeltaRows * columns);
    u = take(kDeltaRows * columns);
  }

  // out[i] = x[i] . panel over `count` inputs, for `rows` rows and all tiles of 16 columns.
  template <class Init>
  void product(const float* x, int64_t stride, int rows, const float* panel, int64_t panel_row, int count, int width,
               float* out, int64_t out_stride, const Init& init) const {
    const auto some = [&](auto tiles, int column) __attribute__((always_inline)) {
      constexpr int kT = decltype(tiles)::value;
      row_blocks<FloatMul::kRows>(
          rows, [&](auto r, int first) __attribute__((always_inline)) {
            constexpr int kR = decltype(r)::value;
            Vec sum[kT][kR];
#pragma GCC unroll 4
            for (int t = 0; t < kT; ++t)
#pragma GCC unroll 8
              for (int i = 0; i < kR; ++i) sum[t][i] = init(out + (first + i) * out_stride + column + t * 16);
            FloatMul::multiply<kT, kR>(x + first * stride, stride, panel + column, 16, count, sum, panel_row);
#pragma GCC unroll 4
            for (int t = 0; t < kT; ++t)
#pragma GCC unroll 8
              for (int i = 0; i < kR; ++i) sum[t][i].store(out + (first + i) * out_stride + column + t * 16);
          });
    };
    int column = 0;
    for (; column + 16 * FloatMul::kTiles <= width; column += 16 * FloatMul::kTiles)
      some(Count<FloatMul::kTiles>{}, column);
    for (; column < width; column += 16) some(Count<1>{}, column);
  }

  void gather(int64_t first, int rows) {
    const size_t bytes = static_cast<size_t>(a.dk) * sizeof(float);
    const float* keys[16];
    for (int t = 0; t < kDeltaRows; ++t) {
      keys[t] = k + t * a.dk;
      if (t >= rows) {
        std::memset(k + t * a.dk, 0, bytes);
        continue;
      }
      std::memcpy(q + t * a.dk, a.q + (first + t) * a.row_stride, bytes);
      std::memcpy(k + t * a.dk, a.k + (first + t) * a.row_stride, bytes);
      const float decay = a.decay[(first + t) * a.gate_stride];
      begin[t] = t == 0 ? decay : begin[t - 1] * decay;
      for (int j = 0; j < t; ++j) since[t][j] = since[t - 1][j] * decay;
      since[t][t] = 1;
    }
    transpose_keys(keys, a.dk, reinterpret_cast<uint32_t*>(k_lanes));
  }

  // Row by row, since each reads what those before it wrote; never what comes later, not even times zero.
  void solve(int64_t first, int rows) const {
    for (int t = 0; t < rows; ++t) {
      const float beta = a.beta[(first + t) * a.gate_stride];
      float by_k[kDeltaRows], by_q[kDeltaRows];
      for (int j = 0; j <= t; ++j) {
        by_k[j] = -since[t][j] * k_by_k[t * kDeltaRows + j];
        by_q[j] = since[t][j] * q_by_k[t * kDeltaRows + j];
      }
      const Vec begins = Vec::set(begin[t]), minus = Vec::set(-begin[t]), betas = Vec::set(beta);
      for (int c = 0; c < columns; c += 16) {
        Vec write = Vec::fma(minus, Vec::load(of_k + t * columns + c), Vec::load(a.v + (first + t) * a.row_stride + c));
        Vec out = Vec::mul(begins, Vec::load(of_q + t * columns + c));
        for (int j = 0; j < t; ++j) {
          const Vec uj = Vec::load(u + j * columns + c);
          write = Vec::fma(Vec::set(by_k[j]), uj, write);
          out = Vec::fma(Vec::set(by_q[j]), uj, out);
        }
        write = Vec::mul(betas, write);
        write.store(u + t * columns + c);
        Vec::fma(Vec::set(by_q[t]), write, out).store(a.out + (first + t) * a.out_stride + c);
      }
    }
  }

  void operator()(int64_t first, int rows) {
    gather(first, rows);
    const auto zero = [](const float*) { return Vec::zero(); };
    product(k, a.dk, rows, k_lanes, 16, a.dk, 16, k_by_k, kDeltaRows, zero);
    product(q, a.dk, rows, k_lanes, 16, a.dk, 16, q_by_k, kDeltaRows, zero);
    product(k, a.dk, rows, a.state, a.dv, a.dk, columns, of_k, columns, zero);
    product(q, a.dk, rows, a.state, a.dv, a.dk, columns, of_q, columns, zero);
    solve(first, rows);
    alignas(64) float last[kDeltaRows] = {};
    for (int j = 0; j < rows; ++j) last[j] = since[rows - 1][j];
    const Vec lanes = Vec::load(last), decay = Vec::set(begin[rows - 1]);
    for (int i = 0; i < a.dk; ++i) Vec::mul(Vec::load(k_lanes + i * 16), lanes).store(k_lanes + i * 16);
    product(k_lanes, 16, a.dk, u, columns, rows, columns, a.state, a.dv,
            [&](const float* s) { return Vec::mul(Vec::load(s), decay); });
  }
};

void delta_chunk(const DeltaArgs& a) {
  DeltaChunk chunk(a);
  for (int64_t t = 0; t < a.rows && chunk.columns > 0; t += kDeltaRows)
    chunk(t, static_cast<int>(a.rows - t < kDeltaRows ? a.rows - t : kDeltaRows));
  for (int column = chunk.columns; column < a.dv; ++column)
    for (int64_t t = 0; t < a.rows; ++t) delta_column(a, t, column);
}

}  // namespace
}  // namespace mettle::cpu
