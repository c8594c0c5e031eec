#include <cstring>
#include <map>
#include <memory>

#include "ops/join_cases.h"
#include "ops/oracle.h"
#include "prove/replay.h"
#include "prove/trial.h"

namespace mettle {

template <>
struct Trial<JoinOp>::State {
  struct Launched {
    std::vector<uint8_t> residual, x_bytes;
    std::vector<float> x;
  };

  // Expected values of a case: of the residual, and of x by the residual's bytes, since x is judged under the backend's
  // own residual. Neither depends on what a backend declares.
  struct Judged {
    std::unique_ptr<Expected> residual;
    std::map<std::vector<uint8_t>, Expected> x;
  };

  JoinProblem problem;
  TrialContext context;
  std::vector<JoinCase> cases;
  std::vector<Judged> judged;

  Launched launch(const Backend<JoinOp>& backend, const Tactic& tactic, const JoinCase& c, bool odd_rows_nan, int pass,
                  Examination* examination) const;
};

template <>
Trial<JoinOp>::~Trial() = default;

template <>
Trial<JoinOp>::Trial(const JoinProblem& problem, const TrialContext& context) : state_(std::make_unique<State>()) {
  state_->problem = problem;
  state_->context = context;
  state_->cases = join_cases(problem, context.seed, 200);
  state_->judged.resize(state_->cases.size());
}

Trial<JoinOp>::State::Launched Trial<JoinOp>::State::launch(const Backend<JoinOp>& backend, const Tactic& tactic,
                                                            const JoinCase& c, bool odd_rows_nan, int pass,
                                                            Examination* examination) const {
  Guarded residual("residual", {c.rows, problem.hidden}, DType::kF32);
  Guarded x("x", {c.rows, problem.hidden}, dtype_of(problem.activation));
  residual.prefill(pass);
  x.prefill(pass);
  CaseInput before = c.residual.copy();
  std::vector<CaseInput> partials;
  std::vector<const float*> pointers;
  for (const CaseInput& p : c.partials) partials.push_back(p.copy());
  for (int r = 1; odd_rows_nan && r < c.rows; r += 2) {
    before.fill_row_nan(r);
    for (CaseInput& p : partials) p.fill_row_nan(r);
  }
  for (const CaseInput& p : partials) pointers.push_back(p.view().as<float>());
  std::memcpy(residual.body(), before.view().data, residual.bytes());
  const FloatArray weight(c.weight);
  const JoinArgs args{problem, c.rows, residual.view(), pointers, weight.data(), x.view()};
  check_args(args);
  run_replayed(context, backend, tactic, args, pass == 1 ? examination : nullptr);
  if (examination != nullptr) {
    examination->demand(residual.check());
    examination->demand(x.check());
  }
  return {residual.copy(), x.copy(), x.values()};
}

template <>
void Trial<JoinOp>::prove(const Backend<JoinOp>& backend, const Tactic& tactic, Examination& examination) {
  State& s = *state_;
  const int64_t cols = s.problem.hidden;
  for (size_t i = 0; i < s.cases.size(); ++i) {
    const JoinCase& c = s.cases[i];
    State::Judged& judged = s.judged[i];
    examination.begin(c.kind);
    if (judged.residual == nullptr) {
      std::vector<const float*> partials;
      for (const CaseInput& p : c.partials) partials.push_back(p.view().as<float>());
      judged.residual = std::make_unique<Expected>(
          oracle::join_residual(s.problem, c.residual.view(), partials, {.exact = c.exact || c.zero}));
    }
    const Expected& residual = *judged.residual;
    const auto judge = [&](const State::Launched& l) {
      if (c.exact || c.zero)
        examination.judge_exact("residual", residual, floats(l.residual));
      else
        examination.judge_elements("residual", residual, floats(l.residual));
      // x is judged under the backend's own residual.
      const TensorView own{const_cast<uint8_t*>(l.residual.data()), DType::kF32, {c.rows, cols}};
      // In float32 the last bit of a reciprocal root shows; in bf16 it does not.
      const bool exact = c.zero || (c.exact && s.problem.activation == Activation::kBf16);
      const auto [at, fresh] = judged.x.try_emplace(l.residual);
      if (fresh) at->second = oracle::join_x(s.problem, own, c.weight.data(), {.exact = exact});
      const Expected& x = at->second;
      if (exact)
        examination.judge_exact("x", x, l.x);
      else
        examination.judge_elements("x", x, l.x);
      if (c.generic) {
        examination.collect("residual", residual, floats(l.residual));
        examination.collect("x", x, l.x);
      }
    };
    const State::Launched first = s.launch(backend, tactic, c, false, 0, &examination);
    judge(first);
    if (!c.generic) continue;
    const State::Launched second = s.launch(backend, tactic, c, false, 1, &examination);
    const int64_t x_row = cols * static_cast<int64_t>(size_of(dtype_of(s.problem.activation)));
    if (backend.numerics.deterministic) {
      examination.judge_same(VerdictCode::kNondeterministic, "residual", first.residual, second.residual, cols * 4);
      examination.judge_same(VerdictCode::kNondeterministic, "x", first.x_bytes, second.x_bytes, x_row);
    } else {
      judge(second);
    }
    if (c.rows < 2) continue;
    const State::Launched beside_nan = s.launch(backend, tactic, c, true, 0, nullptr);
    examination.judge_same(VerdictCode::kRowDependent, "residual", first.residual, beside_nan.residual, cols * 4, 2);
    examination.judge_same(VerdictCode::kRowDependent, "x", first.x_bytes, beside_nan.x_bytes, x_row, 2);
  }
}

template <>
std::function<void()> Trial<JoinOp>::typical_launch(const Backend<JoinOp>& backend, const Tactic& tactic, int rows) {
  State& s = *state_;
  struct Launch {
    Guarded residual, x;
    std::vector<CaseInput> partials;
    std::vector<const float*> pointers;
    FloatArray weight;
  };
  auto l = std::make_shared<Launch>();
  l->residual = Guarded("residual", {rows, s.problem.hidden}, DType::kF32);
  std::memset(l->residual.body(), 0, l->residual.bytes());
  l->x = Guarded("x", {rows, s.problem.hidden}, dtype_of(s.problem.activation));
  CaseRandom random(s.context.seed);
  for (int i = 0; i < s.problem.ranks; ++i) {
    l->partials.emplace_back(rows, s.problem.hidden, DType::kF32);
    // The residual grows by them at every run: kept so small that it stays finite.
    l->partials.back().fill_normal(random, 1e-3);
  }
  for (const CaseInput& p : l->partials) l->pointers.push_back(p.view().as<float>());
  l->weight = FloatArray(s.cases.front().weight);
  return [this, l, &backend, tactic, rows] {
    Stream stream = state_->context.stream();
    backend.run(tactic, {state_->problem, rows, l->residual.view(), l->pointers, l->weight.data(), l->x.view()},
                stream);
  };
}

template class Trial<JoinOp>;

}  // namespace mettle
