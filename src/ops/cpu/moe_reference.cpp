// moe, reference: up to 64 rows at a time: route, group the (row, slot) pairs by expert, both products of every expert
// in use, then each row's slots added in slot order and the shared expert last.
#include <cstring>

#include <fmt/format.h>

#include "ops/cpu/reference_math.h"
#include "ops/moe.h"

namespace mettle {
namespace {

using reference::for_each;
using reference::kRows;
using reference::Rows;

struct Scratch {
  Rows x, logits;
  Rows gate_up, h, y;                       // one row per (row, slot)
  Rows shared_gate_up, shared_h, shared_y;  // one row per row
  Rows shared_gate;                         // [rows, 1]
  int32_t* first = nullptr;                 // [experts + 1] pairs of an expert: order[first[e]..first[e + 1])
  int32_t* order = nullptr;                 // [pairs]
  int32_t* used = nullptr;                  // experts that have pairs
};

Scratch carve(reference::Carver& c, const MoeProblem& p, int rows) {
  const int64_t pairs = static_cast<int64_t>(rows) * p.top_k;
  Scratch s;
  s.x = take_rows(c, rows, p.hidden);
  s.logits = take_rows(c, rows, p.experts);
  s.gate_up = take_rows(c, pairs, 2 * p.width);
  s.h = take_rows(c, pairs, p.width);
  s.y = take_rows(c, pairs, p.hidden);
  s.shared_gate_up = take_rows(c, rows, 2 * p.shared_width);
  s.shared_h = take_rows(c, rows, p.shared_width);
  s.shared_y = take_rows(c, rows, p.shared_width > 0 ? p.hidden : 0);
  s.shared_gate = take_rows(c, rows, 1);
  s.first = c.take<int32_t>(p.experts + 1);
  s.order = c.take<int32_t>(pairs);
  s.used = c.take<int32_t>(p.experts);
  return s;
}

// The best top_k scores, lowest id on ties, and their weights.
void select(const MoeProblem& p, const float* score, int32_t* ids, float* weights) {
  for (int k = 0; k < p.top_k; ++k) {
    int32_t best = -1;
    for (int32_t e = 0; e < p.experts; ++e)
      if (std::find(ids, ids + k, e) == ids + k && (best < 0 || score[e] > score[best])) best = e;
    ids[k] = best;
  }
  const auto exponential = [&](int e) {
    return std::exp(static_cast<double>(score[e]) - static_cast<double>(score[ids[0]]));
  };
  double sum = 0;
  if (p.renormalise) {
    for (int k = 0; k < p.top_k; ++k) sum += exponential(ids[k]);
  } else {
    for (int e = 0; e < p.experts; ++e) sum += exponential(e);
  }
  for (int k = 0; k < p.top_k; ++k) weights[k] = static_cast<float>(exponential(ids[k]) / sum);
}

// Counting sort of the pairs by expert, padding left out; returns how many experts have any.
int group(const MoeProblem& p, const int32_t* ids, int pairs, const Scratch& s) {
  std::fill_n(s.first, p.experts + 1, 0);
  for (int i = 0; i < pairs; ++i)
    if (ids[i] >= 0) ++s.first[ids[i] + 1];
  int used = 0;
  for (int e = 0; e < p.experts; ++e) {
    if (s.first[e + 1] > 0) s.used[used++] = e;
    s.first[e + 1] += s.first[e];
  }
  for (int i = 0; i < pairs; ++i)
    if (ids[i] >= 0) s.order[s.first[ids[i]]++] = i;
  for (int e = p.experts; e > 0; --e) s.first[e] = s.first[e - 1];
  s.first[0] = 0;
  return used;
}

// One tile of one expert's matrix for all its pairs; `slots` pairs share an input row.
void expert_tile(const PackedMatrix& w, int64_t tile, const int32_t* pairs, int count, const Rows& x, int slots,
                 const Rows& y) {
  const float* from[kRows];
  float* to[kRows];
  for (int first = 0; first < count; first += kRows) {
    const int n = std::min(kRows, count - first);
    for (int i = 0; i < n; ++i) {
      from[i] = x[pairs[first + i] / slots];
      to[i] = y[pairs[first + i]];
    }
    reference::product_tile(w, tile, {from, static_cast<size_t>(n)}, {to, static_cast<size_t>(n)});
  }
}

void swiglu(const MoeProblem& p, const float* gate_up, int64_t width, float* h) {
  for (int64_t i = 0; i < width; ++i) h[i] = reference::silu(gate_up[i]) * gate_up[width + i];
  reference::round_if(p.activation == Activation::kBf16, h, width);
}

void run_rows(const MoeArgs& a, int first, int rows, const Scratch& s, Stream& stream) {
  const MoeProblem& p = a.problem;
  const MoeWeights& w = *a.weights;
  const int pairs = rows * p.top_k;
  int32_t* ids = a.selection.ids + static_cast<int64_t>(first) * p.top_k;
  float* weights = a.selection.weights + static_cast<int64_t>(first) * p.top_k;
  reference::widen(a.x, first, rows, s.x);
  if (!a.selection.given) {
    product(w.router, s.x, s.logits, rows, stream);
    for (int i = 0; i < rows; ++i) select(p, s.logits[i], ids + i * p.top_k, weights + i * p.top_k);
  }
  const int used = group(p, ids, pairs, s);
  const auto experts = [&](const auto& matrix, int64_t tiles, const Rows& x, int slots, const Rows& y) {
    for_each(stream, used * tiles, [&](int64_t item) {
      const int32_t e = s.used[item / tiles];
      const PackedExpert& expert = w.experts[static_cast<size_t>(e)];
      expert_tile(matrix(expert), item % tiles, s.order + s.first[e], s.first[e + 1] - s.first[e], x, slots, y);
    });
  };
  const auto gate_up = [](const PackedExpert& e) -> const PackedMatrix& { return e.gate_up; };
  const auto down = [](const PackedExpert& e) -> const PackedMatrix& { return e.down; };
  experts(gate_up, w.experts.front().gate_up.tiles, s.x, p.top_k, s.gate_up);
  for_each(stream, pairs, [&](int64_t i) {
    if (ids[i] >= 0) swiglu(p, s.gate_up[i], p.width, s.h[i]);
  });
  experts(down, w.experts.front().down.tiles, s.h, 1, s.y);
  if (p.shared_width > 0) {
    product(w.shared.gate_up, s.x, s.shared_gate_up, rows, stream);
    for_each(stream, rows, [&](int64_t i) { swiglu(p, s.shared_gate_up[i], p.shared_width, s.shared_h[i]); });
    product(w.shared.down, s.shared_h, s.shared_y, rows, stream);
    if (p.shared_gate) product(w.shared_gate, s.x, s.shared_gate, rows, stream);
  }
  for_each(stream, rows, [&](int64_t i) {
    float* out = a.partial.as<float>() + (first + i) * p.hidden;
    std::fill_n(out, p.hidden, 0.f);
    for (int64_t k = i * p.top_k; k < (i + 1) * p.top_k; ++k)
      for (int64_t c = 0; ids[k] >= 0 && c < p.hidden; ++c) out[c] += weights[k] * s.y[k][c];
    if (p.shared_width == 0) return;
    const float scale = p.shared_gate ? reference::sigmoid(*s.shared_gate[i]) : 1.f;
    for (int64_t c = 0; c < p.hidden; ++c) out[c] += scale * s.shared_y[i][c];
  });
}

void run(const Tactic&, const MoeArgs& a, Stream& stream) {
  reference::Carver carver(a.ws);
  const Scratch scratch = carve(carver, a.problem, std::min(a.rows, kRows));
  for (int first = 0; first < a.rows; first += kRows)
    run_rows(a, first, std::min(kRows, a.rows - first), scratch, stream);
}

Verdict supports(const MoeProblem& p, const Device& device) {
  if (p.top_k < 1 || p.top_k > p.experts)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("top_k {}", p.top_k),
                  fmt::format("1..{} experts", p.experts));
  return reference::on_cpu(device);
}

}  // namespace

extern const Backend<MoeOp> moe_reference = {
    .name = "reference",
    .numerics = {},
    .layout = Layout::kTile16,
    .supports = supports,
    .tactics = [](const MoeProblem&, const Device&) { return reference::plain_tactic(); },
    .workspace =
        [](const Tactic&, const MoeProblem& p, int rows, int) {
          reference::Carver carver({});
          carve(carver, p, std::min(rows, kRows));
          return carver.used();
        },
    .run = run,
};

}  // namespace mettle
