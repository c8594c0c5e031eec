// Faults of attention in tiles of queries: a plain copy of cpu_tiled's core, between the projections and the gate of
// the backend itself.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "healthy.h"
#include "ops/cpu/attention_around.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

using cpu::kTileKeys;
using cpu::kTileQueries;

enum class F {
  kNone,
  kLimitOfTile,
  kLimitOfFirstRow,
  kLimitsByHead,
  kSecondTileFromZero,
  kSumNotShrunk,
  kOutNotShrunk,
  kShrinkOfNeighbour,
  kMaximumOfBlock,
  kOddKeyDropped,
  kPartnerRead,
  kPartialBlockSkipped,
  kValuesOfBlockBefore,
  kKeysOfBlockBefore,
  kLastKeysSkipped,
  kQNotRounded,
  kQTruncated,
  kPTruncated,
  kPTruncatedInSum,
  kLastDimensionsSkipped,
  kLastQueryOfFullTile,
  kGateOfFirstRow,
  kTableOfFirstSequence,
};

float bf16(float x) { return bf16_to_float(float_to_bf16(x)); }
float cut_to_bf16(float x) {
  volatile uint32_t bits = std::bit_cast<uint32_t>(x);
  bits = bits & 0xFFFF0000u;
  return std::bit_cast<float>(uint32_t{bits});
}

// Queries of a tile, in the order of their rows; what they see of one key/value head.
struct Tile {
  const AttentionArgs& a;
  F fault;
  cpu::AttendArgs at;
  std::vector<float> q, out;
  std::vector<int> limit;

  int dim() const { return a.problem.head_dim; }
  float cached(const void* cache, int position, int d) const {
    const int64_t i =
        at.block_table[position / at.block_size] * at.block_stride + position % at.block_size * at.key_stride + d;
    switch (a.problem.cache_dtype()) {
      case DType::kE4M3:
        return e4m3_to_float(static_cast<const uint8_t*>(cache)[i]);
      case DType::kBF16:
        return bf16_to_float(static_cast<const uint16_t*>(cache)[i]);
      default:
        return static_cast<const float*>(cache)[i];
    }
  }
  std::vector<float> converted(const void* cache, int base, int count) const {
    std::vector<float> rows(static_cast<size_t>(count * dim()));
    for (int j = 0; j < count; ++j)
      for (int d = 0; d < dim(); ++d) rows[static_cast<size_t>(j * dim() + d)] = cached(cache, base + j, d);
    return rows;
  }

  void attend() {
    const size_t n = limit.size();
    const auto wide = static_cast<size_t>(dim());
    out.assign(n * wide, 0.f);
    std::vector<float> most(n, -INFINITY), total(n), shrink(n), p(n * kTileKeys), keys, values;
    const int end = limit.back();
    for (int base = 0; base < end; base += kTileKeys) {
      const int count = std::min(end - base, kTileKeys);
      if (fault == F::kPartialBlockSkipped && count < kTileKeys && base > 0) break;
      const std::vector<float> keys_before = keys, values_before = values;
      keys = converted(at.k_cache, base, count);
      values = converted(at.v_cache, base, count);
      // The last 16 positions of a panel are those of the block before.
      if (fault == F::kKeysOfBlockBefore && base > 0 && count == kTileKeys)
        std::copy(keys_before.end() - 16 * dim(), keys_before.end(), keys.end() - 16 * dim());
      if (fault == F::kValuesOfBlockBefore && base > 0 && count == kTileKeys)
        std::copy(values_before.end() - 16 * dim(), values_before.end(), values.end() - 16 * dim());
      for (size_t i = 0; i < n; ++i) {
        shrink[i] = 1;
        int seen = std::min(limit[i] - base, count);
        if (fault == F::kLastKeysSkipped && seen % 16 != 0 && seen > 16) seen -= seen % 16;
        if (seen <= 0) continue;
        float* z = &p[i * kTileKeys];
        float top = fault == F::kMaximumOfBlock && base > 0 ? 0 : most[i];
        for (int j = 0; j < seen; ++j) {
          double sum = 0;
          for (size_t d = 0; d < wide; ++d)
            sum += static_cast<double>(q[i * wide + d]) * keys[static_cast<size_t>(j) * wide + d];
          z[j] = static_cast<float>(sum) * at.scale;
          top = std::max(top, z[j]);
        }
        shrink[i] = std::exp(most[i] - top);
        if (fault == F::kMaximumOfBlock && base > 0) shrink[i] = 1;
        float added = 0;
        for (int j = 0; j < seen; ++j) {
          z[j] = std::exp(z[j] - top);
          const float whole = z[j];
          if (a.problem.activation == Activation::kBf16)
            z[j] = fault == F::kPTruncated || fault == F::kPTruncatedInSum ? cut_to_bf16(whole) : bf16(whole);
          added += fault == F::kPTruncatedInSum ? z[j] : whole;
        }
        total[i] = total[i] * (fault == F::kSumNotShrunk ? 1 : shrink[i]) + added;
        most[i] = top;
      }
      for (size_t i = 0; i < n; ++i) {
        int seen = std::min(limit[i] - base, count);
        if (fault == F::kLastKeysSkipped && seen % 16 != 0 && seen > 16) seen -= seen % 16;
        if (seen <= 0) continue;
        const int used = fault == F::kOddKeyDropped && seen > 1 ? seen / 2 * 2 : seen;
        const float by = fault == F::kOutNotShrunk ? 1 : shrink[fault == F::kShrinkOfNeighbour && i > 0 ? i - 1 : i];
        for (size_t d = 0; d < wide; ++d) {
          float& o = out[i * wide + d];
          o *= by;
          for (int j = 0; j < used; ++j)
            o += p[i * kTileKeys + static_cast<size_t>(j)] * values[static_cast<size_t>(j) * wide + d];
          // The other half of a register: what lies behind an odd count, times zero.
          if (fault == F::kPartnerRead && seen % 2 == 1) o += 0 * cached(at.v_cache, base + seen, static_cast<int>(d));
        }
      }
    }
    for (size_t i = 0; i < n; ++i)
      for (size_t d = 0; d < wide; ++d) {
        if (fault == F::kLastDimensionsSkipped && d + 16 >= wide) out[i * wide + d] = 0;
        out[i * wide + d] /= total[i];
      }
    if (fault == F::kLastQueryOfFullTile && n == kTileQueries)
      std::copy(out.end() - 2 * dim(), out.end() - dim(), out.end() - dim());
  }
};

struct Place {
  const BatchSequence* sequence;
  int first, rows, kv;  // rows of the sequence
};

void attend(const cpu::AttentionAround& around, const Place& at, F fault) {
  const AttentionArgs& a = around.args();
  const AttentionProblem& p = a.problem;
  const BatchSequence& s = *at.sequence;
  const int group = around.group(), dim = p.head_dim;
  const BatchSequence& table =
      fault == F::kTableOfFirstSequence &&
              a.batch->sequences[0].ctx_len + a.batch->sequences[0].q_len >= s.ctx_len + s.q_len
          ? a.batch->sequences[0]
          : s;
  Tile tile{a, fault, around.over_cache(table, at.kv), {}, {}, {}};
  const auto limit_of = [&](int r) {
    if (fault == F::kLimitOfTile) r = at.rows - 1;
    if (fault == F::kLimitOfFirstRow) r = 0;
    return s.ctx_len + (fault == F::kSecondTileFromZero ? 0 : at.first) + r + 1;
  };
  for (int r = 0; r < at.rows; ++r)
    for (int h = 0; h < group; ++h) {
      const float* q = around.query(s.first_row + at.first + r, at.kv * group + h);
      for (int d = 0; d < dim; ++d) {
        float v = q[d];
        if (p.activation == Activation::kBf16 && fault != F::kQNotRounded)
          v = fault == F::kQTruncated ? cut_to_bf16(v) : bf16(v);
        tile.q.push_back(v);
      }
      // As if queries stood head by head, limits row by row.
      tile.limit.push_back(limit_of(fault == F::kLimitsByHead ? (h * at.rows + r) / group : r));
    }
  tile.attend();
  std::vector<float> room(static_cast<size_t>(dim));
  for (int r = 0; r < at.rows; ++r)
    for (int h = 0; h < group; ++h) {
      const int head = at.kv * group + h;
      float* o = tile.out.data() + static_cast<size_t>((r * group + h) * dim);
      if (fault == F::kGateOfFirstRow && p.gate) {
        // finish() multiplies with the row's own gate: put the other in its place.
        const float* own = around.query(s.first_row + at.first + r, head) + dim;
        const float* first = around.query(s.first_row + at.first, head) + dim;
        for (int d = 0; d < dim; ++d) o[d] *= (1 + std::exp(-own[d])) / (1 + std::exp(-first[d]));
      }
      around.finish(s.first_row + at.first + r, head, o, room.data());
    }
}

template <F fault>
void copy(const Tactic& tactic, const AttentionArgs& args, Stream& stream) {
  AttentionArgs a = args;
  Buffer ws(cpu::attention_workspace(tactic, a.problem, a.batch->rows, stream.team->members(), 0));
  a.ws = {ws.data(), ws.size()};
  cpu::AttentionAround around(tactic, a, stream, 0);
  around.begin();
  std::vector<Place> places;
  const int rows = std::max(1, kTileQueries / around.group());
  for (const BatchSequence& s : a.batch->sequences)
    for (int first = 0; first < s.q_len; first += rows)
      for (int kv = 0; kv < a.problem.kv_heads; ++kv)
        places.push_back({&s, first, std::min(rows, s.q_len - first), kv});
  reference::for_each(stream, std::ssize(places),
                      [&](int64_t i) { attend(around, places[static_cast<size_t>(i)], fault); });
  around.end();
}

template <F fault>
constexpr Fault<AttentionOp> named(std::string_view name) {
  return {name, copy<fault>, "cpu_tiled"};
}
constexpr Fault<AttentionOp> kFaults[] = {
    named<F::kNone>("tiled_copy"),
    named<F::kLimitOfTile>("tiled_limit_of_last_row"),
    named<F::kLimitOfFirstRow>("tiled_limit_of_first_row"),
    named<F::kLimitsByHead>("tiled_limits_in_order_of_heads"),
    named<F::kSecondTileFromZero>("tiled_rows_counted_from_tile"),
    named<F::kSumNotShrunk>("tiled_sum_not_shrunk"),
    named<F::kOutNotShrunk>("tiled_out_not_shrunk"),
    named<F::kShrinkOfNeighbour>("tiled_shrink_of_query_before"),
    named<F::kMaximumOfBlock>("tiled_maximum_of_first_block_alone"),
    named<F::kOddKeyDropped>("tiled_odd_key_dropped"),
    named<F::kPartnerRead>("tiled_partner_of_odd_key_read"),
    named<F::kPartialBlockSkipped>("tiled_partial_block_skipped"),
    named<F::kValuesOfBlockBefore>("tiled_last_values_of_block_before"),
    named<F::kKeysOfBlockBefore>("tiled_last_keys_of_block_before"),
    named<F::kLastKeysSkipped>("tiled_partial_group_skipped"),
    named<F::kQNotRounded>("tiled_q_not_rounded"),
    named<F::kQTruncated>("tiled_q_truncated"),
    named<F::kPTruncated>("tiled_p_truncated"),
    named<F::kPTruncatedInSum>("tiled_p_truncated_in_the_sum_too"),
    named<F::kLastDimensionsSkipped>("tiled_last_dimensions_skipped"),
    named<F::kLastQueryOfFullTile>("tiled_last_query_of_full_tile"),
    named<F::kGateOfFirstRow>("tiled_gate_of_first_row"),
    named<F::kTableOfFirstSequence>("tiled_table_of_first_sequence"),
};

}  // namespace

std::span<const Fault<AttentionOp>> attention_tiled_faults() { return kFaults; }

}  // namespace mettle::mutants
