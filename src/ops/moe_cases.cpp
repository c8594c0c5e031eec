#include "ops/moe_cases.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "ops/case_rows.h"

namespace mettle {
namespace {

constexpr int64_t kMatrixBudget = 6'000'000;  // weights of one set of experts before matrices are shared

enum class Kind : uint8_t { kTypical, kDeepGates, kExactGate, kExactUp };

struct Columns {  // of x with a meaning of their own
  int address = 1, bits = 0, feature = 0;
  bool special(int64_t k) const { return k == feature || (k >= address && k < address + bits); }
};

Columns columns_of(const MoeProblem& p, Kind kind) {
  Columns c;
  c.bits = std::bit_width(static_cast<unsigned>(p.experts - 1));
  if (kind == Kind::kExactUp) c = {p.hidden / 2, c.bits, p.hidden - 1};
  return c;
}

bool has_global_scale(WeightFormat f) { return f == WeightFormat::kNvfp4 || f == WeightFormat::kFp8; }
bool free_form(WeightFormat f) { return f == WeightFormat::kF32 || f == WeightFormat::kBf16; }

// Gate and up stand in segments of their own: their global scales differ.
CaseWeight gate_up_of(WeightFormat format, int width, const MoeProblem& p, Kind kind, CaseRandom& random) {
  const bool exact = kind == Kind::kExactGate || kind == Kind::kExactUp;
  CaseWeight w =
      case_weight(format, {width, width}, p.hidden, exact ? CaseFill::kExact : CaseFill::kTypical, random, 1.7);
  const Columns at = columns_of(p, kind);
  if (kind == Kind::kDeepGates)
    for (int64_t r = 0; r < width; ++r) {
      case_set(w, r, at.feature, -6);
      case_set(w, width + r, at.feature, 0);
    }
  if (!exact) return w;
  if (has_global_scale(format))
    for (RawMatrix& m : w.raw) m.global_scale = 1;
  // silu(g) == g in float32 from 18 on: the gate stands at 256 or 128 and either it or up is dense.
  const bool gate = kind == Kind::kExactGate;
  for (int64_t r = 0; r < 2 * width; ++r) {
    const bool dense = (r < width) == gate;
    for (int64_t k = 0; k < p.hidden; ++k)
      if (!dense || at.special(k)) case_set(w, r, k, 0);
    const double feature = r < width ? (gate ? 4 : 2) : (gate ? 1 : 0);
    if (feature != 0) case_set(w, r, at.feature, feature);
  }
  return w;
}

CaseWeight down_of(WeightFormat format, int width, const MoeProblem& p, Kind kind, CaseRandom& random) {
  const bool exact = kind == Kind::kExactGate || kind == Kind::kExactUp;
  CaseWeight w = case_weight(format, {p.hidden}, width, exact ? CaseFill::kExact : CaseFill::kTypical, random, 1.7);
  if (exact && has_global_scale(format)) w.raw[0].global_scale = 1;
  return w;
}

// A second view of a packed matrix with row scales of its own.
PackedMatrix with_scales(const PackedMatrix& m, const RawSegments& raw, std::vector<Buffer>& keep) {
  PackedMatrix out = m;
  out.storage = nullptr;  // whoever made m owns it
  keep.emplace_back(static_cast<size_t>(m.tiles * 16) * sizeof(float));
  float* scale = keep.back().as<float>();
  out.row_scale = scale;
  int64_t row = 0;
  for (const RawMatrix& s : raw)
    for (int64_t r = 0; r < s.rows; ++r)
      scale[packed_row(m, row++)] = s.global_scale * (s.row_scale != nullptr ? s.row_scale[r] : 1.f);
  return out;
}

void scale_by(RawSegments& raw, float factor) {
  for (RawMatrix& m : raw)
    if (has_global_scale(m.format)) m.global_scale *= factor;
}

void fill_experts(MoeCaseWeights& w, const MoeProblem& p, Kind kind, CaseRandom& random) {
  const bool exact = kind == Kind::kExactGate || kind == Kind::kExactUp;
  const int64_t size = int64_t{3} * p.hidden * p.width;
  const int pool = static_cast<int>(std::clamp<int64_t>(kMatrixBudget / size, 6, p.experts));
  const int distinct = std::min(pool, p.experts);
  w.distinct = static_cast<size_t>(distinct);
  std::vector<RawExpert> matrices;
  for (int e = 0; e < distinct; ++e) {
    const CaseWeight gate_up = gate_up_of(p.format, p.width, p, kind, random);
    const CaseWeight down = down_of(p.format, p.width, p, kind, random);
    matrices.push_back({gate_up.raw, down.raw});
    w.memory.push_back(gate_up);
    w.memory.push_back(down);
  }
  for (int e = 0; e < p.experts; ++e) {
    const size_t g = static_cast<size_t>(e % distinct), d = static_cast<size_t>((e / distinct + e) % distinct);
    RawExpert raw{matrices[g].gate_up, matrices[d].down};
    if (exact) {
      scale_by(raw.gate_up, std::ldexp(1.f, e % 2));
      scale_by(raw.down, std::ldexp(1.f, e % 3));
    } else if (e >= distinct) {
      scale_by(raw.gate_up, 0.8f + 0.4f * static_cast<float>(e * 37 % 101) / 101);
      scale_by(raw.down, 0.8f + 0.4f * static_cast<float>(e * 53 % 101) / 101);
    }
    w.raw.experts.push_back(raw);
    if (e < distinct) {
      w.packed.experts.push_back(pack_expert(w.layout, raw));
    } else {
      const auto& like = w.packed.experts;
      PackedMatrix gate_up = with_scales(like[g].gate_up, raw.gate_up, w.row_scales);
      PackedMatrix down = with_scales(like[d].down, raw.down, w.row_scales);
      w.packed.experts.push_back({std::move(gate_up), std::move(down)});
    }
  }
  if (w.layout == Layout::kP64) point_at_experts(w.packed);
}

void set_router(MoeCaseWeights& w, CaseWeight router) {
  w.raw.router = router.raw;
  pack_router(w.layout, w.raw, w.packed);
  w.memory.push_back(std::move(router));
}

void set_shared(MoeCaseWeights& w, CaseWeight gate_up, CaseWeight down, CaseWeight gate) {
  w.raw.shared = {gate_up.raw, down.raw};
  w.raw.shared_gate = gate.raw;
  w.packed.shared = pack_expert(w.layout, w.raw.shared);
  pack_router(w.layout, w.raw, w.packed);
  for (CaseWeight* m : {&gate_up, &down, &gate}) w.memory.push_back(std::move(*m));
}

// The shared part of a set whose experts are in place; `on`: its sigmoid is 1, 0 or (no value) anything.
void add_shared(MoeCaseWeights& w, const MoeProblem& p, Kind kind, bool on, double feature_x, CaseRandom& random) {
  if (p.shared_width == 0) return;
  const Columns at = columns_of(p, kind);
  CaseWeight gate_up, down, gate;
  if (kind == Kind::kTypical) {
    gate_up = gate_up_of(p.shared_format, p.shared_width, p, kind, random);
    down = down_of(p.shared_format, p.shared_width, p, kind, random);
    if (p.shared_gate) gate = case_weight(p.router_format, {1}, p.hidden, CaseFill::kTypical, random, 1.5);
    return set_shared(w, std::move(gate_up), std::move(down), std::move(gate));
  }
  const bool silent = kind == Kind::kDeepGates && !p.shared_gate;
  const auto small = [&] {
    return silent ? 0.0 : std::array{-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0}[static_cast<size_t>(random.below(7))];
  };
  gate_up = case_weight_of(p.shared_format, 2 * p.shared_width, p.hidden, [&](int64_t r, int64_t k) {
    if (r < p.shared_width) return k == at.feature && !silent ? 2.0 : 0.0;
    return at.special(k) ? 0.0 : small();
  });
  down = case_weight_of(p.shared_format, p.hidden, p.shared_width, [&](int64_t, int64_t) { return small(); });
  if (p.shared_gate)
    gate = case_weight_of(p.router_format, 1, p.hidden, [&](int64_t, int64_t k) {
      return k == at.feature ? (on ? 128.0 : -512.0) / feature_x : 0.0;
    });
  set_shared(w, std::move(gate_up), std::move(down), std::move(gate));
}

using Router = std::function<double(int64_t expert, int64_t k)>;

// The same experts under another router. The copy shares the memory of the raw form and views the packed one.
std::shared_ptr<const MoeCaseWeights> with_router(std::shared_ptr<const MoeCaseWeights> base, const MoeProblem& p,
                                                  const Router& value) {
  auto w = std::make_shared<MoeCaseWeights>();
  w->layout = base->layout;
  w->raw = base->raw;
  w->distinct = 0;
  const auto view = [&](const PackedMatrix& m, const RawSegments& raw) {
    return m.empty() ? PackedMatrix{} : with_scales(m, raw, w->row_scales);
  };
  for (size_t e = 0; e < base->packed.experts.size(); ++e)
    w->packed.experts.push_back({view(base->packed.experts[e].gate_up, base->raw.experts[e].gate_up),
                                 view(base->packed.experts[e].down, base->raw.experts[e].down)});
  w->packed.shared = {view(base->packed.shared.gate_up, base->raw.shared.gate_up),
                      view(base->packed.shared.down, base->raw.shared.down)};
  if (w->layout == Layout::kP64) point_at_experts(w->packed);
  set_router(*w, case_weight_of(p.router_format, p.experts, p.hidden, value));
  w->base = std::move(base);
  return w;
}

std::shared_ptr<MoeCaseWeights> empty_weights(Layout layout) {
  auto w = std::make_shared<MoeCaseWeights>();
  w->layout = layout;
  return w;
}

std::shared_ptr<const MoeCaseWeights> typical_weights(const MoeProblem& p, Layout layout, CaseRandom& random) {
  auto w = empty_weights(layout);
  fill_experts(*w, p, Kind::kTypical, random);
  set_router(*w, case_weight(p.router_format, {p.experts}, p.hidden, CaseFill::kTypical, random, 1.5));
  add_shared(*w, p, Kind::kTypical, true, 1, random);
  return w;
}

double at(const RawSegments& raw, int64_t row, int64_t col) {
  size_t i = 0;
  while (row >= raw[i].rows) row -= raw[i++].rows;
  return raw[i].at(row, col);
}

MoeCase typical(const MoeProblem& p, int rows, const std::string& kind, std::shared_ptr<const MoeCaseWeights> weights,
                CaseRandom& random, double scale = 1) {
  MoeCase c;
  c.kind = kind;
  c.rows = rows;
  c.generic = true;
  c.weights = std::move(weights);
  c.x = CaseInput(rows, p.hidden, dtype_of(p.activation));
  c.x.fill_normal(random, scale);
  return c;
}

// Integers through the whole step: address bits of x pick one expert with weight exactly 1, the other experts tie.
MoeCase exact_case(const MoeProblem& p, int rows, Kind kind, bool on, std::shared_ptr<const MoeCaseWeights> weights,
                   CaseRandom& random) {
  const Columns at = columns_of(p, kind);
  MoeCase c =
      typical(p, rows, std::string(kind == Kind::kExactGate ? "exact_gate" : "exact_up") + (on ? "_shared" : ""),
              std::move(weights), random, 0);
  c.exact_scores = true;
  // With float32 activations h is not rounded to 8 bits and sums pass 2^24 quanta: the interval rule judges them then.
  c.exact = p.activation == Activation::kBf16;
  c.generic = false;
  const int ones = std::min(48, p.hidden / 2);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < ones;) {
      const int k = random.below(p.hidden);
      if (at.special(k) || c.x.get(r, k) != 0) continue;
      c.x.set(r, k, random.chance(0.5) ? 1 : -1);
      ++i;
    }
    c.x.set(r, at.feature, 64);
    const int target = static_cast<int>((int64_t{r} * 37 + p.experts - 1) % p.experts);
    for (int b = 0; b < at.bits; ++b) c.x.set(r, at.address + b, (target >> b & 1) != 0 ? 8 : -8);
  }
  return c;
}

// Every expert alone in its row, padding beside it: among others a small fault of one column hides behind their
// roundings. Of very large problems a spread of them. On a CPU only: what it costs a GPU's proof was not measured.
void add_each_alone(const MoeProblem& p, const std::shared_ptr<const MoeCaseWeights>& weights, CaseRandom& random,
                    std::vector<MoeCase>& out) {
  constexpr int64_t kWork = 2'000'000'000;  // multiply-adds of all of them
  constexpr int kRows = 24;
  if (weights->layout != Layout::kTile16) return;
  const int64_t work = int64_t{3} * p.hidden * (p.width + p.shared_width);
  const int experts = static_cast<int>(std::clamp<int64_t>(kWork / work, 64, std::max(p.experts, 64)));
  const int count = std::min(experts, p.experts);
  for (int first = 0; first < count; first += kRows) {
    MoeCase c = exact_case(p, std::min(kRows, count - first), Kind::kExactGate, true, weights, random);
    c.kind = "expert_alone" + std::to_string(first);
    for (int r = 0; r < c.rows; ++r) {
      c.given.push_back(static_cast<int32_t>(int64_t{first + r} * p.experts / count));
      c.given.insert(c.given.end(), static_cast<size_t>(p.top_k - 1), -1);
    }
    out.push_back(std::move(c));
  }
}

// Experts that are not here: three routes in ten are -1, and all of the last of several rows. One row, two and more
// have kernels of their own. Drawn apart from the other cases.
void add_absent(const MoeProblem& p, uint64_t seed, int rows, const std::shared_ptr<const MoeCaseWeights>& weights,
                std::vector<MoeCase>& out) {
  CaseRandom random(seed + 1);
  for (const int n : {1, 2, rows}) {
    MoeCase c = typical(p, n, "given_absent" + std::to_string(n), weights, random);
    c.generic = false;
    for (int r = 0; r < n; ++r)
      for (int k = 0; k < p.top_k; ++k) {
        const bool absent = (n > 1 && r + 1 == n) || k == 1 || (k > 1 && random.chance(0.3));
        const int id = (r * 7 + k * std::max(p.experts / p.top_k, 1)) % p.experts;
        c.given.push_back(absent ? -1 : id);
      }
    out.push_back(std::move(c));
  }
}

void add_exact(const MoeProblem& p, int budget, Layout layout, CaseRandom& random, std::vector<MoeCase>& out) {
  for (const Kind kind : {Kind::kExactGate, Kind::kExactUp}) {
    const bool on = kind == Kind::kExactGate;
    auto w = empty_weights(layout);
    fill_experts(*w, p, kind, random);
    const Columns at = columns_of(p, kind);
    set_router(*w, case_weight_of(p.router_format, p.experts, p.hidden, [&](int64_t e, int64_t k) {
      if (k < at.address || k >= at.address + at.bits) return 0.0;
      return (e >> (k - at.address) & 1) != 0 ? 8.0 : -8.0;
    }));
    add_shared(*w, p, kind, on, 64, random);
    out.push_back(
        exact_case(p, std::clamp(p.experts, std::min(16, budget), std::max(budget / 2, 16)), kind, on, w, random));
    if (kind == Kind::kExactGate) add_each_alone(p, w, random, out);
  }
}

MoeCase deep_gates(const MoeProblem& p, int rows, Layout layout, CaseRandom& random) {
  auto w = empty_weights(layout);
  const Columns columns = columns_of(p, Kind::kDeepGates);
  fill_experts(*w, p, Kind::kDeepGates, random);
  const CaseWeight base = case_weight(p.router_format, {p.experts}, p.hidden, CaseFill::kTypical, random, 1.5);
  set_router(*w, case_weight_of(p.router_format, p.experts, p.hidden,
                                [&](int64_t e, int64_t k) { return k == columns.feature ? 0 : base.raw[0].at(e, k); }));
  // Of the expert whose gates go deepest: below -88 exp overflows in float32, and any backend may give zero.
  double unit = 0;
  for (const RawExpert& e : w->raw.experts)
    for (int64_t r = 0; r < p.width; ++r) unit = std::max(unit, std::fabs(at(e.gate_up, r, columns.feature)));
  add_shared(*w, p, Kind::kDeepGates, false, 12 / unit, random);
  MoeCase c = typical(p, rows, "deep_negative_gates", w, random);
  c.generic = false;
  for (int r = 0; r < rows; ++r) c.x.set(r, columns.feature, (12.0 + 38.0 * r / rows) / unit);
  return c;
}

}  // namespace

std::vector<MoeCase> moe_cases(const MoeProblem& p, uint64_t seed, int budget, Layout layout) {
  CaseRandom random(seed);
  const auto base = typical_weights(p, layout, random);
  std::vector<MoeCase> out;
  for (const int rows : case_row_counts(budget))
    out.push_back(typical(p, rows, "rows" + std::to_string(rows), base, random));
  const int few = std::clamp(budget / 8, 3, 17);

  MoeCase equal = typical(p, std::clamp(budget / 8, 3, 16), "rows_equal", base, random);
  equal.generic = false;
  for (int r = 1; r < equal.rows; ++r)
    for (int64_t k = 0; k < p.hidden; ++k) equal.x.set(r, k, equal.x.get(0, k));
  out.push_back(std::move(equal));

  MoeCase given = typical(p, few, "given_selection", base, random);
  for (int r = 0; r < few; ++r)
    for (int k = 0; k < p.top_k; ++k)
      given.given.push_back(static_cast<int32_t>((r * 5 + k * std::max(p.experts / p.top_k, 1)) % p.experts));
  given.generic = false;
  out.push_back(std::move(given));

  // Padding: in a different place of each row, and all of the last row.
  if (layout == Layout::kTile16) {
    MoeCase padded = typical(p, few, "given_padding", base, random);
    for (int r = 0; r < few; ++r)
      for (int k = 0; k < p.top_k; ++k)
        padded.given.push_back(r + 1 == few || (r + k) % 3 == 0
                                   ? -1
                                   : static_cast<int32_t>((r * 7 + k * std::max(p.experts / p.top_k, 1)) % p.experts));
    padded.generic = false;
    out.push_back(std::move(padded));
  } else {
    add_absent(p, seed, few, base, out);
  }

  // Every expert is used once: one that is wrong alone shows, whatever the router would choose.
  constexpr int kRowsOfEach = 24;
  for (int first = 0; first * p.top_k < p.experts; first += kRowsOfEach) {
    const int rows = std::min(kRowsOfEach, (p.experts + p.top_k - 1) / p.top_k - first);
    MoeCase each = typical(p, rows, "every_expert" + std::to_string(first), base, random);
    for (int i = 0; i < rows * p.top_k; ++i) each.given.push_back((first * p.top_k + i) % p.experts);
    out.push_back(std::move(each));
  }

  // Outputs near 2^-90: gate and up enter as a product.
  MoeCase tiny = typical(p, few, "tiny", base, random, 0x1p-44);
  tiny.generic = false;
  out.push_back(std::move(tiny));

  if (!free_form(p.router_format)) return out;  // the cases below choose router weights freely
  const RawSegments& router = base->raw.router;
  const auto scaled = [&](double by) {
    return with_router(base, p, [&router, by](int64_t e, int64_t k) { return at(router, e, k) * by; });
  };
  out.push_back(typical(p, few, "peaky_router", scaled(5), random));
  out.push_back(typical(p, few, "large", scaled(1.0 / 16), random, 16));

  // Column 3 of x steers: 16 rows for the last expert and some others, 35 for one, or rows for every second one alone.
  const auto steered = [&](const std::string& kind, int rows, const std::vector<int>& experts) {
    std::vector<char> wanted(static_cast<size_t>(p.experts));
    for (const int e : experts) wanted[static_cast<size_t>(e)] = 1;
    MoeCase c = typical(p, rows, kind,
                        with_router(base, p,
                                    [&](int64_t e, int64_t k) {
                                      if (k != 3) return at(router, e, k);
                                      return wanted[static_cast<size_t>(e)] != 0 ? 4.0 : 0.0;
                                    }),
                        random);
    for (int r = 0; r < rows; ++r) c.x.set(r, 3, 2);
    return c;
  };
  out.push_back(steered("sixteen_rows_last_expert", 16, {p.experts - 1, p.experts / 3}));
  out.push_back(steered("one_expert_takes_all", std::min(budget, 35), {p.experts / 2}));
  std::vector<int> even;
  for (int e = 0; e < p.experts && static_cast<int>(even.size()) < std::max(p.top_k, 8); e += 2) even.push_back(e);
  out.push_back(steered("every_other_empty", few, even));

  MoeCase ties = typical(p, few, "ties", nullptr, random);
  // Groups of equal scores, of a size that the cut of top_k goes through.
  const int alike = p.top_k % 3 != 0 ? 3 : 2;
  std::vector<double> values(static_cast<size_t>(p.experts * p.hidden));
  for (double& v : values) v = (random.below(5) - 2) / 64.0;
  ties.weights = with_router(
      base, p, [&](int64_t e, int64_t k) { return values[static_cast<size_t>(e / alike * alike * p.hidden + k)]; });
  for (int r = 0; r < ties.rows; ++r)
    for (int64_t k = 0; k < p.hidden; ++k) ties.x.set(r, k, random.below(5) - 2);
  ties.exact_scores = true;
  ties.generic = false;
  out.push_back(std::move(ties));

  if (p.hidden >= 64) {
    out.push_back(deep_gates(p, few, layout, random));
    add_exact(p, budget, layout, random, out);
  }
  return out;
}

MoeCase moe_typical_case(const MoeProblem& p, int rows, uint64_t seed, Layout layout) {
  CaseRandom random(seed);
  return typical(p, rows, "typical", typical_weights(p, layout, random), random);
}

}  // namespace mettle
