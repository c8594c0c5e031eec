#include <algorithm>

#include "ops/case_rows.h"
#include "ops/linear_cases.h"
#include "ops/oracle.h"
#include "prove/replay.h"
#include "prove/timed_weights.h"
#include "prove/trial.h"

namespace mettle {
namespace {

constexpr int kWidest = 16'384;  // a wider weight is proved and timed on its first rows

}  // namespace

LinearProblem proved_part(LinearProblem p) {
  if (p.out > kWidest) p.out = kWidest / 2 + p.out % 1024;
  return p;
}

template <>
struct Trial<LinearOp>::State {
  struct Judged {
    std::vector<int> rows;
    Expected expected;
    RestOfRows rest;
    CaseInput neighbours_nan;  // x with NaN in every odd row
  };
  struct Typical {  // of so many rows, for all tactics that are timed
    int rows = 0;
    CaseInput x;
    Guarded y;
  };

  LinearProblem problem;
  TrialContext context;
  int64_t work;  // multiply-adds of a row
  std::vector<LinearCase> cases;
  std::vector<PackedMatrix> packed;  // of each case; shared weights are packed once
  std::vector<size_t> packed_of;
  std::vector<Judged> judged;
  Verdict packing;
  std::shared_ptr<Typical> typical;
  std::unique_ptr<TimedWeights<PackedMatrix>> timed;

  const PackedMatrix& weight_of(size_t i) const { return packed[packed_of[i]]; }
  std::vector<uint8_t> launch(const Backend<LinearOp>& backend, const Tactic& tactic, const LinearCase& c,
                              const PackedMatrix& weight, const CaseInput& x, int pass, Examination* examination);
};

template <>
Trial<LinearOp>::~Trial() = default;

template <>
Trial<LinearOp>::Trial(const LinearProblem& whole, const TrialContext& context) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.problem = proved_part(whole);
  s.context = context;
  s.work = int64_t{s.problem.in} * s.problem.out;
  const int budget = static_cast<int>(std::clamp<int64_t>(context.work / 2 / s.work, 90, 400));
  if (context.proves)
    s.cases = linear_cases(s.problem, context.seed, budget);
  else
    s.cases.push_back(linear_typical_case(s.problem, 1, context.seed));  // its weight is timed
  std::vector<const CaseWeight*> seen;
  for (const LinearCase& c : s.cases) {
    const CaseWeight* weight = c.weight.get();
    const auto at = std::find(seen.begin(), seen.end(), weight);
    s.packed_of.push_back(static_cast<size_t>(at - seen.begin()));
    if (at != seen.end()) continue;
    seen.push_back(weight);
    s.packed.push_back(weight->packed(context.layout()));
    if (context.proves && s.packing.ok()) s.packing = prove_packing("weight", s.packed.back(), weight->raw);
    context.alive();
  }
  s.judged.resize(s.cases.size());
}

template <>
void Trial<LinearOp>::prove(const Backend<LinearOp>& backend, const Tactic& tactic, Examination& examination) {
  State& s = *state_;
  const int64_t row_bytes = int64_t{s.problem.out} * 4;
  examination.begin("packing");
  examination.demand(s.packing);
  for (size_t i = 0; i < s.cases.size(); ++i) {
    const LinearCase& c = s.cases[i];
    State::Judged& judged = s.judged[i];
    const PackedMatrix& weight = s.weight_of(i);
    examination.begin(c.kind);
    const std::vector<uint8_t> first = s.launch(backend, tactic, c, weight, c.x, 0, &examination);
    if (judged.rows.empty()) {
      judged.rows = case_sample_rows(c.rows, static_cast<int>(std::max<int64_t>(kOracleWork / s.work, 2)));
      judged.expected = expect_rows(*s.context.team, judged.rows, [&](std::span<const int> rows) {
        return oracle::linear(s.problem, c.weight->raw, c.x.view(), rows,
                              {.numerics = backend.numerics, .exact = c.exact});
      });
      s.context.alive();
      if (static_cast<int>(judged.rows.size()) < c.rows && c.generic) {
        const std::vector<uint8_t> plain =
            s.launch(reference_of<LinearOp>(s.context.kind()), {"plain", Isa::kScalar, 0}, c, weight, c.x, 0, nullptr);
        judged.rest = rest_of_rows(c.rows, judged.rows, judged.expected, floats(plain));
      }
    }
    const auto judge = [&](std::span<const float> all) {
      const std::vector<float> got = pick_rows(all, s.problem.out, judged.rows);
      if (!c.reads.empty()) {
        std::vector<int> columns;
        for (const int r : judged.rows) columns.push_back(c.reads[static_cast<size_t>(r)]);
        examination.judge_exact("transposed weight", judged.expected, got, columns);
      } else if (c.exact) {
        examination.judge_exact("y", judged.expected, got, judged.rows);
      } else {
        examination.judge_elements("y", judged.expected, got, judged.rows);
      }
      if (!judged.rest.rows.empty())
        examination.judge_elements("y", judged.rest.expected, pick_rows(all, s.problem.out, judged.rest.rows),
                                   judged.rest.rows);
      if (c.generic) examination.collect("y", judged.expected, got);
    };
    judge(floats(first));
    if (!c.generic) continue;
    const std::vector<uint8_t> second = s.launch(backend, tactic, c, weight, c.x, 1, &examination);
    if (backend.numerics.deterministic)
      examination.judge_same(VerdictCode::kNondeterministic, "y", first, second, row_bytes);
    else
      judge(floats(second));
    if (c.rows < 2) continue;
    if (judged.neighbours_nan.rows() == 0) {
      judged.neighbours_nan = c.x.copy();
      for (int r = 1; r < c.rows; r += 2) judged.neighbours_nan.fill_row_nan(r);
    }
    const std::vector<uint8_t> beside_nan = s.launch(backend, tactic, c, weight, judged.neighbours_nan, 0, nullptr);
    examination.judge_same(VerdictCode::kRowDependent, "y", first, beside_nan, row_bytes, 2);
  }
}

// Runs once and checks the layout (not when examination is null: NaN inputs give NaN outputs).
std::vector<uint8_t> Trial<LinearOp>::State::launch(const Backend<LinearOp>& backend, const Tactic& tactic,
                                                    const LinearCase& c, const PackedMatrix& weight, const CaseInput& x,
                                                    int pass, Examination* examination) {
  Guarded y("y", {c.rows, problem.out}, DType::kF32);
  y.prefill(pass);
  GuardedWorkspace ws(workspace_bytes(backend, tactic, problem, c.rows, context.team->members()));
  const LinearArgs args{problem, c.rows, x.view(), &weight, y.view(), ws.arm()};
  check_args(args);
  run_replayed(context, backend, tactic, args, pass == 1 ? examination : nullptr);
  if (examination != nullptr) {
    examination->demand(y.check());
    examination->demand(ws.check());
  }
  return y.copy();
}

template <>
std::function<void()> Trial<LinearOp>::typical_launch(const Backend<LinearOp>& backend, const Tactic& tactic,
                                                      int rows) {
  State& s = *state_;
  if (s.typical == nullptr || s.typical->rows != rows) {
    s.typical = std::make_shared<State::Typical>();
    CaseRandom random(s.context.seed);
    s.typical->rows = rows;
    s.typical->x = CaseInput(rows, s.problem.in, dtype_of(s.problem.activation));
    s.typical->x.fill_normal(random);
    s.typical->y = Guarded("y", {rows, s.problem.out}, DType::kF32);
  }
  if (s.timed == nullptr) s.timed = timed_weights(s.packed.front(), s.context);
  const size_t bytes = workspace_bytes(backend, tactic, s.problem, rows, s.context.team->members());
  return [this, l = s.typical, ws = std::make_shared<Buffer>(bytes), &backend, tactic, rows] {
    State& st = *state_;
    Stream stream = st.context.stream();
    backend.run(tactic, {st.problem, rows, l->x.view(), st.timed->next(), l->y.view(), {ws->data(), ws->size()}},
                stream);
  };
}

template class Trial<LinearOp>;

}  // namespace mettle
