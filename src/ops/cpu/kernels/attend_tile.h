// Attention of a tile of queries over the paged cache of their key/value head: 64 positions at a time, running maximum
// and sum. Keys and values are converted once for all queries of the tile into panels in which one register holds 16
// keys (for the scores) or 16 dimensions (for the values), so that both products are those of a matrix. Positions are
// grouped by their absolute number, as in attend.h: a query's result does not depend on its neighbours.
//
// What multiplies is a Mul: its type of inputs (In), how many of them along the sum one register holds of each of 16
// columns (kStep), and the product itself. FloatMul is here, that of bfloat16 pairs in attend_pairs.h.
#pragma once
#include <cstring>
#include <type_traits>

#include "ops/cpu/kernels/attend.h"

namespace mettle::cpu {
namespace {

struct FloatMul {
  using In = float;
  static constexpr int kStep = 1, kRows = Vec::kPanelRows, kTiles = Vec::kPanelTiles;

  static float in(float v) { return v; }
  static float in(uint16_t v) { return value_of(v); }
  static float in(uint8_t v) { return e4m3_of(v); }
  static float of_p(float p, bool round) { return round ? as_float(bf16_of(p) << 16) : p; }
  // One position's values beside nothing.
  static void values(const float* v, const float*, float* to) {
    for (int d = 0; d < 16; ++d) to[d] = v[d];
  }
  // sum[t][r] += x[r] . panel t, over `count` inputs; the panels' rows are `row` floats apart.
  template <int T, int R>
  static inline __attribute__((always_inline)) void multiply(const float* x, int64_t stride, const float* panel,
                                                             int64_t panel_stride, int count, Vec (&sum)[T][R],
                                                             int64_t row = 16) {
    for (int k = 0; k < count; ++k) {
      Vec w[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) w[t] = Vec::load(panel + t * panel_stride + k * row);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec xk = Vec::set(x[r * stride + k]);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sum[t][r] = Vec::fma(xk, w[t], sum[t][r]);
      }
    }
  }
};

// The panels and scores of a tile, in AttendArgs::scratch.
template <class Mul>
struct TileScratch {
  using In = typename Mul::In;
  static constexpr int kGroups = kTileKeys / 16;
  int wide;       // head_dim up to a multiple of 16
  In* keys;       // [kGroups][wide / kStep][16][kStep]
  In* values;     // [wide / 16][kTileKeys / kStep][16][kStep]
  In* p;          // [queries][kTileKeys]
  float* scores;  // [queries][kTileKeys]
  In* rows;       // [16][wide]
  In* zeros;      // [wide]
  explicit TileScratch(const AttendArgs& a) : wide(tile_dim(a.head_dim)) {
    float* at = a.scratch;
    const auto take = [&](int64_t floats) { return at += floats, at - floats; };
    keys = reinterpret_cast<In*>(take(kTileKeys * wide));
    values = reinterpret_cast<In*>(take(kTileKeys * wide));
    p = reinterpret_cast<In*>(take(kTileQueries * kTileKeys));
    scores = take(kTileQueries * kTileKeys);
    rows = reinterpret_cast<In*>(take(16 * wide));
    zeros = reinterpret_cast<In*>(take(wide));
  }
};

// Calls use(j, row) for the positions base..base + count of a cache.
template <class Stored, class F>
inline void each_position(const AttendArgs& a, const void* cache, int base, int count, const F& use) {
  int block = base / a.block_size, offset = base % a.block_size;
  for (int j = 0; j < count; ++j) {
    use(j, static_cast<const Stored*>(cache) + a.block_table[block] * a.block_stride + offset * a.key_stride);
    if (++offset == a.block_size) offset = 0, ++block;
  }
}

// A row as inputs, zero behind the head: where it lies when it is that already, else in `room`.
template <class Mul, class Stored>
inline const typename Mul::In* as_inputs(const AttendArgs& a, int wide, const Stored* row, typename Mul::In* room) {
  if constexpr (std::is_same_v<Stored, typename Mul::In>)
    if (a.head_dim == wide) return row;
  for (int d = 0; d < a.head_dim; ++d) room[d] = Mul::in(row[d]);
  for (int d = a.head_dim; d < wide; ++d) room[d] = 0;
  return room;
}

// Groups with a key among the first `count`; beside those in a group zeros, which no query sees.
template <class Mul, class Stored>
inline void convert_keys(const AttendArgs& a, const TileScratch<Mul>& s, int base, int count) {
  using In = typename Mul::In;
  for (int g = 0; g < s.kGroups; ++g) {
    const int here = count - 16 * g < 16 ? count - 16 * g : 16;
    if (here <= 0) return;
    In* panel = s.keys + int64_t{g} * s.wide * 16;
    const In* rows[16];
    for (int j = 0; j < 16; ++j) rows[j] = s.zeros;
    each_position<Stored>(a, a.k_cache, base + 16 * g, here, [&](int j, const Stored* key) {
      rows[j] = as_inputs<Mul>(a, s.wide, key, s.rows + j * s.wide);
    });
    transpose_keys(rows, s.wide, reinterpret_cast<uint32_t*>(panel));
  }
}

// Values behind `count` are zeros, for the inputs that share a register with the last one.
template <class Mul, class Stored>
inline void convert_values(const AttendArgs& a, const TileScratch<Mul>& s, int base, int count) {
  using In = typename Mul::In;
  constexpr int kStep = Mul::kStep;
  const In* pending = nullptr;
  each_position<Stored>(a, a.v_cache, base, count, [&](int j, const Stored* value) {
    const In* to = as_inputs<Mul>(a, s.wide, value, s.rows + j % kStep * s.wide);
    if (kStep == 2 && j % 2 == 0 && j + 1 < count) {
      pending = to;
      return;
    }
    const In* first = kStep == 2 && j % 2 == 1 ? pending : to;
    const In* second = kStep == 2 && j % 2 == 1 ? to : s.zeros;
    for (int t = 0; t < s.wide / 16; ++t)
      Mul::values(first + t * 16, second + t * 16, s.values + (int64_t{t} * kTileKeys + j / kStep * kStep) * 16);
  });
}

template <class Mul>
inline void score_tile(const AttendArgs& a, const TileScratch<Mul>& s, int groups) {
  const auto* q = static_cast<const typename Mul::In*>(static_cast<const void*>(a.q));
  const auto some = [&](auto tiles, int g) __attribute__((always_inline)) {
    constexpr int kT = decltype(tiles)::value;
    row_blocks<Mul::kRows>(
        a.queries, [&](auto r, int first) __attribute__((always_inline)) {
          constexpr int kR = decltype(r)::value;
          Vec sum[kT][kR];
#pragma GCC unroll 4
          for (int t = 0; t < kT; ++t)
#pragma GCC unroll 8
            for (int i = 0; i < kR; ++i) sum[t][i] = Vec::zero();
          Mul::template multiply<kT, kR>(q + first * s.wide, s.wide, s.keys + int64_t{g} * s.wide * 16,
                                         int64_t{s.wide} * 16, s.wide, sum);
#pragma GCC unroll 4
          for (int t = 0; t < kT; ++t)
#pragma GCC unroll 8
            for (int i = 0; i < kR; ++i) sum[t][i].store(s.scores + (first + i) * kTileKeys + (g + t) * 16);
        });
  };
  int g = 0;
  for (; g + Mul::kTiles <= groups; g += Mul::kTiles) some(Count<Mul::kTiles>{}, g);
  for (; g < groups; ++g) some(Count<1>{}, g);
}

// Queries first..first + R: out = out * shrink + p . values, over the first `seen` positions of the block.
template <class Mul, int T, int R>
inline void weigh_values(const AttendArgs& a, const TileScratch<Mul>& s, const float* shrink, int first, int tile,
                         int seen) {
  Vec sum[T][R];
  float* out = a.out + int64_t{first} * s.wide + tile * 16;
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[t][r] = Vec::mul(Vec::load(out + r * s.wide + t * 16), Vec::set(shrink[first + r]));
  Mul::template multiply<T, R>(s.p + first * kTileKeys, kTileKeys, s.values + int64_t{tile} * kTileKeys * 16,
                               int64_t{kTileKeys} * 16, seen, sum);
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[t][r].store(out + r * s.wide + t * 16);
}

template <class Mul>
inline void weigh_values(const AttendArgs& a, const TileScratch<Mul>& s, const float* shrink, int first, int count,
                         int seen) {
  const auto some = [&](auto tiles, int tile) __attribute__((always_inline)) {
    row_blocks<Mul::kRows>(
        count, [&](auto r, int at) __attribute__((always_inline)) {
          weigh_values<Mul, decltype(tiles)::value, decltype(r)::value>(a, s, shrink, first + at, tile, seen);
        });
  };
  int tile = 0;
  for (; tile + Mul::kTiles <= s.wide / 16; tile += Mul::kTiles) some(Count<Mul::kTiles>{}, tile);
  for (; tile < s.wide / 16; ++tile) some(Count<1>{}, tile);
}

template <class Mul, class Stored>
void attend_tile(const AttendArgs& a) {
  const TileScratch<Mul> s(a);
  const int n = a.queries;
  std::memset(s.zeros, 0, static_cast<size_t>(s.wide) * sizeof(float));
  std::memset(a.out, 0, static_cast<size_t>(n) * static_cast<size_t>(s.wide) * sizeof(float));
  alignas(64) float most[kTileQueries], next[kTileQueries], shrink[kTileQueries], total[kTileQueries];
  for (int i = 0; i < kTileQueries; ++i) {
    most[i] = next[i] = -__builtin_inff();
    total[i] = 0;
  }
  for (int base = 0; base < a.max_limit; base += kTileKeys) {
    const int count = a.max_limit - base < kTileKeys ? a.max_limit - base : kTileKeys;
    convert_keys<Mul, Stored>(a, s, base, count);
    convert_values<Mul, Stored>(a, s, base, count);
    score_tile<Mul>(a, s, (count + 15) / 16);
    const auto seen_by = [&](int i) { return a.limit[i] - base < kTileKeys ? a.limit[i] - base : kTileKeys; };
    for (int i = 0; i < n; ++i) {
      const int seen = seen_by(i);
      if (seen <= 0) continue;
      float* z = s.scores + i * kTileKeys;
      alignas(64) float lanes[16];
      for (int j = 0; j < kTileKeys; ++j) z[j] *= a.scale;
      for (int j = seen; j < kTileKeys; ++j) z[j] = -__builtin_inff();
      for (int j = 0; j < 16; ++j) {
        const float x = z[j] > z[j + 16] ? z[j] : z[j + 16], y = z[j + 32] > z[j + 48] ? z[j + 32] : z[j + 48];
        lanes[j] = x > y ? x : y;
      }
      next[i] = max_lanes(lanes, most[i]);
    }
    for (int i = 0; i < kTileQueries; ++i) {
      shrink[i] = exp_of(most[i] - next[i]);
      most[i] = next[i];
    }
    for (int i = 0; i < n; ++i) {
      if (seen_by(i) <= 0) continue;
      float* z = s.scores + i * kTileKeys;
      typename Mul::In* p = s.p + i * kTileKeys;
      const float top = most[i];
      alignas(64) float lanes[16];
      for (int j = 0; j < kTileKeys; ++j) z[j] = exp_of(z[j] - top);
      for (int j = 0; j < 16; ++j) lanes[j] = (z[j] + z[j + 16]) + (z[j + 32] + z[j + 48]);
      for (int j = 0; j < kTileKeys; ++j) p[j] = Mul::of_p(z[j], a.round_p);
      total[i] = total[i] * shrink[i] + sum_lanes(lanes);
    }
    // Queries that see alike, together. What a query may not see is not multiplied, not even with zero: it may hold
    // what a later row left there.
    for (int first = 0; first < n;) {
      const int seen = seen_by(first);
      int end = first + 1;
      while (end < n && seen_by(end) == seen) ++end;
      if (seen > 0) weigh_values<Mul>(a, s, shrink, first, end - first, seen);
      first = end;
    }
  }
  for (int i = 0; i < n; ++i) {
    const float sum = total[i];
    for (int d = 0; d < a.head_dim; ++d) a.out[i * s.wide + d] /= sum;
  }
}

}  // namespace
}  // namespace mettle::cpu
