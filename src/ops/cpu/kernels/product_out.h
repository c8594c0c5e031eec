// Where a product kernel puts 16 outputs of a row. Included by one source per instruction set, after its vec_*.h.
#pragma once
#include "ops/cpu/kernels/kernels.h"

namespace mettle::cpu {
namespace {

// The block scales of nvfp4 arrive times 2^-8 (Vec::e4m3): taken back here, exactly.
inline Vec row_scale_of(const TileMatrix& m, int64_t tile) {
  const Vec s = Vec::load(m.row_scale + tile * 16);
  return m.weights == Weights::kNvfp4 ? Vec::mul(s, Vec::set(256.f)) : s;
}

inline void put(const TileMatrix& m, int64_t tile, const OutRows& out, int row, Vec acc, Vec row_scale) {
  const int64_t at = out.index != nullptr ? out.index[row] : row;
  float* y = out.y + at * out.stride + (tile - out.first_tile) * 16;
  Vec v = Vec::mul(acc, row_scale);
  const int64_t columns = m.rows - tile * 16;
  if (columns >= 16) {
    if (out.weight != nullptr) v = Vec::fma(Vec::set(out.weight[row]), v, Vec::load(y));
    v.store(y);
    return;
  }
  alignas(64) float old[16] = {};
  for (int64_t c = 0; c < columns; ++c) old[c] = y[c];
  if (out.weight != nullptr) v = Vec::fma(Vec::set(out.weight[row]), v, Vec::load(old));
  v.store(old);
  for (int64_t c = 0; c < columns; ++c) y[c] = old[c];
}

template <class T>
inline const T* in_row(const InRows& in, int row) {
  return static_cast<const T*>(in.x) + (in.index != nullptr ? in.index[row] : row) * in.stride;
}

inline void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 3); }
inline void prefetch_second_level(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }
inline constexpr int64_t kAhead = 2048;  // bytes; a tile is followed by the next one

// Calls block(std::integral-constant-like R, first row) for n rows in blocks of at most Most.
template <int R>
struct Count {
  static constexpr int value = R;
};
template <int Most, class F>
inline void tail_block(int left, int first, const F& block) {
  if constexpr (Most > 0) {
    if (left == Most) {
      block(Count<Most>{}, first);
    } else {
      tail_block<Most - 1>(left, first, block);
    }
  }
}
template <int Most, class F>
inline void row_blocks(int n, const F& block) {
  int row = 0;
  for (; row + Most <= n; row += Most) block(Count<Most>{}, row);
  tail_block<Most - 1>(n - row, row, block);
}

}  // namespace
}  // namespace mettle::cpu
