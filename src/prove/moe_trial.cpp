#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "ops/case_rows.h"
#include "ops/moe_cases.h"
#include "ops/oracle.h"
#include "prove/replay.h"
#include "prove/timed_weights.h"
#include "prove/trial.h"

namespace mettle {

template <>
struct Trial<MoeOp>::State {
  // Expected values hold for one selection and one declaration.
  struct Judged {
    Expected partial, weights;
    RestOfRows rest;
  };
  struct CaseState {
    std::vector<int> rows;  // that the oracle computes
    std::vector<float> given_weights;
    std::vector<double> scores, sigma;
    std::map<std::pair<std::vector<int32_t>, std::string>, Judged> judged;
  };
  struct Launched {
    std::vector<uint8_t> partial, ids, weights;
    std::span<const int32_t> id_values() const {
      return {reinterpret_cast<const int32_t*>(ids.data()), ids.size() / 4};
    }
  };
  struct Typical {  // of so many rows, for all tactics that are timed
    int rows = 0;
    CaseInput x;
    Guarded partial, ids, weights;
  };

  MoeProblem problem;
  TrialContext context;
  std::vector<MoeCase> cases;
  std::vector<CaseState> states;
  Verdict packing;
  std::shared_ptr<Typical> typical;
  std::unique_ptr<TimedWeights<MoeWeights>> timed;

  // Multiply-adds of a row that meets so many experts.
  int64_t work(int64_t experts) const {
    return int64_t{3} * problem.hidden * (experts * problem.width + problem.shared_width) +
           int64_t{problem.hidden} * problem.experts;
  }
  int64_t work() const { return work(problem.top_k); }
  int64_t work(const MoeCase& c) const {
    const auto used = std::count_if(c.given.begin(), c.given.end(), [](int32_t id) { return id >= 0; });
    return c.given.empty() ? work() : work((used + c.rows - 1) / c.rows);
  }
  Launched launch(const Backend<MoeOp>& backend, const Tactic& tactic, const MoeCase& c, const CaseInput& x,
                  std::span<const int32_t> given, std::span<const float> given_weights, int pass,
                  Examination* examination) const;
  const Judged& judged(size_t i, const Launched& launched, const Backend<MoeOp>& backend);
  void check_packing(const MoeCaseWeights& w);
};

template <>
Trial<MoeOp>::~Trial() = default;

void Trial<MoeOp>::State::check_packing(const MoeCaseWeights& w) {
  const auto demand = [&](const std::string& name, const PackedMatrix& packed, const RawSegments& raw) {
    if (packing.ok() && !raw.empty()) packing = prove_packing(name, packed, raw);
    context.alive();
  };
  RawSegments router = w.raw.router;
  if (context.layout() == Layout::kP64) router.insert(router.end(), w.raw.shared_gate.begin(), w.raw.shared_gate.end());
  demand("router", w.packed.router, router);
  for (size_t e = 0; e < w.distinct; ++e) {
    demand("gate_up", w.packed.experts[e].gate_up, w.raw.experts[e].gate_up);
    demand("down", w.packed.experts[e].down, w.raw.experts[e].down);
  }
  if (w.base != nullptr) return;  // another router for experts that are checked already
  demand("shared.gate_up", w.packed.shared.gate_up, w.raw.shared.gate_up);
  demand("shared.down", w.packed.shared.down, w.raw.shared.down);
  if (!w.packed.shared_gate.empty()) demand("shared_gate", w.packed.shared_gate, w.raw.shared_gate);
}

template <>
Trial<MoeOp>::Trial(const MoeProblem& problem, const TrialContext& context) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.problem = problem;
  s.context = context;
  if (context.proves)
    s.cases = moe_cases(problem, context.seed,
                        static_cast<int>(std::clamp<int64_t>(context.work / 2 / s.work(), 90, 300)), context.layout());
  else
    s.cases.push_back(moe_typical_case(problem, 1, context.seed, context.layout()));  // its weights are timed
  context.alive();
  s.states.resize(s.cases.size());
  const MoeCaseWeights* last = nullptr;
  for (const MoeCase& c : s.cases) {
    if (context.proves && c.weights.get() != last) s.check_packing(*c.weights);
    last = c.weights.get();
  }
}

Trial<MoeOp>::State::Launched Trial<MoeOp>::State::launch(const Backend<MoeOp>& backend, const Tactic& tactic,
                                                          const MoeCase& c, const CaseInput& x,
                                                          std::span<const int32_t> given,
                                                          std::span<const float> given_weights, int pass,
                                                          Examination* examination) const {
  Guarded partial("partial", {c.rows, problem.hidden}, DType::kF32);
  Guarded ids("selection.ids", {c.rows, problem.top_k}, DType::kI32);
  Guarded weights("selection.weights", {c.rows, problem.top_k}, DType::kF32);
  for (Guarded* g : {&partial, &ids, &weights}) g->prefill(pass);
  if (!given.empty()) {
    std::copy(given.begin(), given.end(), ids.view().as<int32_t>());
    std::copy(given_weights.begin(), given_weights.end(), weights.view().as<float>());
  }
  GuardedWorkspace ws(workspace_bytes(backend, tactic, problem, c.rows, context.team->members()));
  const MoeArgs args{problem,        c.rows,
                     x.view(),       &c.weights->packed,
                     partial.view(), {!given.empty(), ids.view().as<int32_t>(), weights.view().as<float>()},
                     ws.arm()};
  check_args(args);
  run_replayed(context, backend, tactic, args, pass == 1 ? examination : nullptr);
  if (examination != nullptr) {
    examination->demand(partial.check());
    examination->demand(ids.check());
    examination->demand(given.empty() ? weights.check() : weights.check_guards());  // padding's may be anything
    examination->demand(ws.check());
  }
  return {partial.copy(), ids.copy(), weights.copy()};
}

const Trial<MoeOp>::State::Judged& Trial<MoeOp>::State::judged(size_t i, const Launched& launched,
                                                               const Backend<MoeOp>& backend) {
  const MoeCase& c = cases[i];
  CaseState& state = states[i];
  const std::span<const int32_t> ids = launched.id_values();
  const auto [at, fresh] = state.judged.try_emplace({{ids.begin(), ids.end()}, backend.numerics.text()});
  Judged& j = at->second;
  if (!fresh) return j;
  const oracle::Options options{.numerics = backend.numerics, .exact = c.exact};
  j.partial = expect_rows(*context.team, state.rows, [&](std::span<const int> rows) {
    return oracle::moe(problem, c.weights->raw, c.x.view(), rows, ids.data(), options);
  });
  j.weights = oracle::route(problem, c.weights->raw, c.x.view(), state.rows, ids.data(), options).weights;
  context.alive();
  if (static_cast<int>(state.rows.size()) < c.rows && c.generic) {
    const auto* own = reinterpret_cast<const float*>(launched.weights.data());
    const Launched plain = launch(reference_of<MoeOp>(context.kind()), {"plain", Isa::kScalar, 0}, c, c.x, ids,
                                  {own, launched.weights.size() / 4}, 0, nullptr);
    j.rest = rest_of_rows(c.rows, state.rows, j.partial, floats(plain.partial));
  }
  return j;
}

template <>
void Trial<MoeOp>::prove(const Backend<MoeOp>& backend, const Tactic& tactic, Examination& examination) {
  State& s = *state_;
  const MoeProblem& p = s.problem;
  examination.begin("packing");
  examination.demand(s.packing);
  for (size_t i = 0; i < s.cases.size(); ++i) {
    const MoeCase& c = s.cases[i];
    State::CaseState& state = s.states[i];
    examination.begin(c.kind);
    if (state.rows.empty()) {
      state.rows = case_sample_rows(c.rows, static_cast<int>(std::max<int64_t>(kOracleWork / s.work(c), 4)));
      const oracle::Options options{.exact = c.exact_scores};
      std::vector<int32_t> some(static_cast<size_t>(c.rows * p.top_k));
      for (size_t k = 0; k < some.size(); ++k)
        some[k] = c.given.empty() ? static_cast<int32_t>(k % static_cast<size_t>(p.top_k)) : c.given[k];
      const oracle::RouteExpected route =
          oracle::route(p, c.weights->raw, c.x.view(), iota_rows(c.rows), some.data(), options);
      state.scores = route.score;
      state.sigma = c.exact_scores ? std::vector<double>(route.sigma.size()) : route.sigma;
      if (!c.given.empty()) state.given_weights.assign(route.weights.value.begin(), route.weights.value.end());
      for (size_t k = 0; k < c.given.size(); ++k)
        if (c.given[k] < 0) state.given_weights[k] = NAN;  // not read
    }
    const auto judge = [&](const State::Launched& l) {
      const std::vector<float> floats_of_rows = pick_rows(floats(l.partial), p.hidden, state.rows);
      if (c.given.empty()) {
        // Out of range anywhere would take the oracle's memory along.
        for (const int32_t id : l.id_values())
          if (id < 0 || id >= p.experts)
            examination.fail_with(refuse(VerdictCode::kWrongSelection, std::to_string(id),
                                         "0.." + std::to_string(p.experts - 1), "an expert id is out of range"));
        examination.judge_selection(state.scores, state.sigma, c.rows, p.experts, l.id_values(), p.top_k, {});
      } else if (std::memcmp(c.given.data(), l.ids.data(), l.ids.size()) != 0 ||
                 std::memcmp(state.given_weights.data(), l.weights.data(), l.weights.size()) != 0) {
        examination.fail_with(refuse(VerdictCode::kWrongSelection, "another selection", "the given one",
                                     "the selection was given and came back changed"));
      }
      const State::Judged& j = s.judged(i, l, backend);
      const std::vector<float> weights = pick_rows(floats(l.weights), p.top_k, state.rows);
      if (c.exact) {
        if (c.given.empty()) examination.judge_exact("selection.weights", j.weights, weights, state.rows);
        examination.judge_exact("partial", j.partial, floats_of_rows, state.rows);
      } else {
        if (c.given.empty()) examination.judge_elements("selection.weights", j.weights, weights, state.rows);
        examination.judge_elements("partial", j.partial, floats_of_rows, state.rows);
      }
      if (!j.rest.rows.empty())
        examination.judge_elements("partial", j.rest.expected, pick_rows(floats(l.partial), p.hidden, j.rest.rows),
                                   j.rest.rows);
      if (c.generic) examination.collect("partial", j.partial, floats_of_rows);
    };
    const State::Launched first = s.launch(backend, tactic, c, c.x, c.given, state.given_weights, 0, &examination);
    judge(first);
    if (!c.kind.starts_with("rows") || !c.generic) continue;
    const State::Launched second = s.launch(backend, tactic, c, c.x, {}, {}, 1, &examination);
    if (backend.numerics.deterministic) {
      examination.judge_same(VerdictCode::kNondeterministic, "selection.ids", first.ids, second.ids,
                             int64_t{p.top_k} * 4);
      examination.judge_same(VerdictCode::kNondeterministic, "partial", first.partial, second.partial,
                             int64_t{p.hidden} * 4);
    } else {
      judge(second);
    }
    if (c.rows < 2) continue;
    CaseInput beside = c.x.copy();
    for (int r = 1; r < c.rows; r += 2) beside.fill_row_nan(r);
    // Once with its own routing, which must survive NaN scores; once with the first run's, so that every expert has the
    // same rows and the even ones must come out bit for bit.
    s.launch(backend, tactic, c, beside, {}, {}, 0, nullptr);
    const State::Launched same_routes =
        s.launch(backend, tactic, c, beside, first.id_values(), floats(first.weights), 0, nullptr);
    examination.judge_same(VerdictCode::kRowDependent, "partial", first.partial, same_routes.partial,
                           int64_t{p.hidden} * 4, 2);
  }
}

template <>
std::function<void()> Trial<MoeOp>::typical_launch(const Backend<MoeOp>& backend, const Tactic& tactic, int rows) {
  State& s = *state_;
  if (s.typical == nullptr || s.typical->rows != rows) {
    s.typical = std::make_shared<State::Typical>();
    CaseRandom random(s.context.seed);
    s.typical->rows = rows;
    s.typical->x = CaseInput(rows, s.problem.hidden, dtype_of(s.problem.activation));
    s.typical->x.fill_normal(random);
    s.typical->partial = Guarded("partial", {rows, s.problem.hidden}, DType::kF32);
    s.typical->ids = Guarded("ids", {rows, s.problem.top_k}, DType::kI32);
    s.typical->weights = Guarded("weights", {rows, s.problem.top_k}, DType::kF32);
  }
  if (s.timed == nullptr) s.timed = timed_weights(s.cases.front().weights->packed, s.context);
  const size_t bytes = workspace_bytes(backend, tactic, s.problem, rows, s.context.team->members());
  return [this, l = s.typical, ws = std::make_shared<Buffer>(bytes), &backend, tactic, rows] {
    State& st = *state_;
    Stream stream = st.context.stream();
    backend.run(tactic,
                {st.problem,
                 rows,
                 l->x.view(),
                 st.timed->next(),
                 l->partial.view(),
                 {false, l->ids.view().as<int32_t>(), l->weights.view().as<float>()},
                 {ws->data(), ws->size()}},
                stream);
  };
}

template class Trial<MoeOp>;

}  // namespace mettle
