#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <numeric>

#include "ops/oracle.h"
#include "ops/sample_cases.h"
#include "ops/sample_stage.h"
#include "prove/replay.h"
#include "prove/trial.h"

namespace mettle {
namespace {

constexpr int kDrawnRows = 32;                                    // of the logits that are timed
constexpr int32_t kUnwritten = static_cast<int32_t>(0xA5A5A5A5);  // no token, not -1 either

}  // namespace

template <>
struct Trial<SampleOp>::State {
  struct Right {  // per row
    oracle::SampleExpected token;
    std::vector<int32_t> best;  // by raw logit, lowest id on ties: the alternatives
    oracle::LogitSum sum{};
  };

  SampleProblem problem;
  TrialContext context;
  std::vector<SampleCase> cases;                       // none when nothing is proved
  std::pair<int, std::shared_ptr<CaseInput>> typical;  // logits of so many rows, for all tactics that are timed
  std::vector<std::vector<Right>> right;

  std::vector<uint8_t> launch(const Backend<SampleOp>& backend, const Tactic& tactic, const SampleCase& c,
                              const CaseInput& logits, Examination& examination, bool replay = false) const;
  void judge(const SampleCase& c, const std::vector<Right>& rows, const std::vector<SampleResult>& results,
             Examination& examination) const;
  const std::vector<Right>& right_of(size_t i);
};

template <>
Trial<SampleOp>::~Trial() = default;

template <>
Trial<SampleOp>::Trial(const SampleProblem& problem, const TrialContext& context) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.problem = problem;
  s.context = context;
  if (!context.proves) return;
  s.cases = sample_cases(problem, context.seed, std::clamp(250'000 / problem.vocab, 3, 64));
  s.right.resize(s.cases.size());
}

const std::vector<Trial<SampleOp>::State::Right>& Trial<SampleOp>::State::right_of(size_t i) {
  const SampleCase& c = cases[i];
  std::vector<Right>& rows = right[i];
  if (!rows.empty()) return rows;
  rows.resize(static_cast<size_t>(c.rows));
  const std::vector<SampleRow> params = c.params();
  context.team->run([&](int member) {
    const Span share = share_of(c.rows, member, context.team->members());
    for (int64_t r = share.begin; r < share.end; ++r) {
      const auto at = static_cast<size_t>(r);
      const float* logits = c.logits.view().as<float>() + r * problem.vocab;
      rows[at].token = oracle::sample(problem, logits, params[at]);
      if (!std::all_of(logits, logits + problem.usable, [](float l) { return std::isfinite(l); })) continue;
      rows[at].sum = oracle::logit_sum(problem, logits);
      std::vector<int32_t> order(static_cast<size_t>(problem.usable));
      std::iota(order.begin(), order.end(), 0);
      const auto wanted = std::min<ptrdiff_t>(params[at].top_logprobs, problem.usable);
      std::partial_sort(order.begin(), order.begin() + wanted, order.end(), [&](int32_t a, int32_t b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
      });
      rows[at].best.assign(order.begin(), order.begin() + wanted);
    }
  });
  context.alive();
  return rows;
}

std::vector<uint8_t> Trial<SampleOp>::State::launch(const Backend<SampleOp>& backend, const Tactic& tactic,
                                                    const SampleCase& c, const CaseInput& logits,
                                                    Examination& examination, bool replay) const {
  const auto bytes = static_cast<int64_t>(sizeof(SampleResult)) * c.rows;
  Guarded results("results", {bytes}, DType::kU8);
  results.arm();
  std::memset(results.body(), 0xA5, results.bytes());
  GuardedWorkspace ws(workspace_bytes(backend, tactic, problem, c.rows, context.team->members()));
  const std::vector<SampleRow> params = c.params();
  const std::unique_ptr<Place> place = host_place();
  SampleStage stage(c.rows, *place);
  const SampleArgs args{problem,
                        c.rows,
                        logits.view(),
                        params,
                        {reinterpret_cast<SampleResult*>(results.body()), static_cast<size_t>(c.rows)},
                        ws.arm(),
                        &stage.fill(params)};
  check_args(args);
  run_replayed(context, backend, tactic, args, replay ? &examination : nullptr);
  examination.demand(results.check_guards());
  examination.demand(ws.check());
  return results.copy();
}

void Trial<SampleOp>::State::judge(const SampleCase& c, const std::vector<Right>& rows,
                                   const std::vector<SampleResult>& results, Examination& examination) const {
  const auto wrong = [&](VerdictCode code, int row, const std::string& have, const std::string& need,
                         const std::string& what) {
    examination.fail_with(refuse(code, have, need, fmt::format("row {}: {}", row, what)));
  };
  Expected logprobs(1, 0, DType::kF32);
  std::vector<float> got;
  const auto expect = [&](const Right& right, const float* logits, int32_t id, float value) {
    double sigma = 0;
    logprobs.value.push_back(oracle::logprob(problem, right.sum, logits[id], &sigma));
    logprobs.sys.push_back(sigma);
    got.push_back(value);
  };
  for (int r = 0; r < c.rows; ++r) {
    const auto at = static_cast<size_t>(r);
    const SampleResult& result = results[at];
    const Right& right = rows[at];
    const float* logits = c.logits.view().as<float>() + int64_t{r} * problem.vocab;
    if (result.token == kUnwritten)
      wrong(VerdictCode::kIncompleteWrite, r, "unwritten", "a token", "no token was written");
    examination.count(1);
    if (!right.token.finite) {
      if (result.token != -1)
        wrong(VerdictCode::kWrongSelection, r, fmt::format("{}", result.token), "-1",
              fmt::format("drew token {} from logits that are not finite, must say -1", result.token));
      continue;
    }
    if (std::find(right.token.right.begin(), right.token.right.end(), result.token) == right.token.right.end()) {
      const std::string need =
          right.token.right.size() == 1
              ? fmt::format("{}", right.token.right.front())
              : fmt::format("one of {} tokens such as {}", right.token.right.size(), right.token.right.front());
      wrong(VerdictCode::kWrongSelection, r, fmt::format("{}", result.token), need,
            fmt::format("drew token {}, must be {} (temperature {}, top_k {}, top_p {}, min_p {}, random {:.6f})",
                        result.token, need, c.bare[at].temperature, c.bare[at].top_k, c.bare[at].top_p,
                        c.bare[at].min_p, c.bare[at].random));
    }
    expect(right, logits, result.token, result.logprob);
    for (size_t k = 0; k < right.best.size(); ++k) {
      if (result.top_ids[k] != right.best[k])
        wrong(VerdictCode::kWrongSelection, r, fmt::format("{}", result.top_ids[k]), fmt::format("{}", right.best[k]),
              fmt::format("alternative {} is token {}, must be {}", k, result.top_ids[k], right.best[k]));
      expect(right, logits, right.best[k], result.top_logprobs[k]);
    }
  }
  logprobs.cols = static_cast<int64_t>(logprobs.value.size());
  logprobs.rnd.resize(logprobs.value.size());
  logprobs.jump.resize(logprobs.value.size());
  for (const float g : got)
    if (!std::isfinite(g))
      examination.fail_with(
          refuse(VerdictCode::kNotFinite, fmt::format("{}", g), "finite", "a log-probability is not finite"));
  if (logprobs.cols > 0) examination.judge_elements("logprob", logprobs, got);
}

template <>
void Trial<SampleOp>::prove(const Backend<SampleOp>& backend, const Tactic& tactic, Examination& examination) {
  State& s = *state_;
  const auto results_of = [](const std::vector<uint8_t>& bytes) {
    std::vector<SampleResult> out(bytes.size() / sizeof(SampleResult));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  };
  for (size_t i = 0; i < s.cases.size(); ++i) {
    const SampleCase& c = s.cases[i];
    examination.begin(c.kind);
    const std::vector<uint8_t> first = s.launch(backend, tactic, c, c.logits, examination);
    s.judge(c, s.right_of(i), results_of(first), examination);
    if (c.rows > 64 && i > 3) continue;  // the demands below hold for any parameters: a few cases show them
    const std::vector<uint8_t> second = s.launch(backend, tactic, c, c.logits, examination, true);
    examination.judge_same(VerdictCode::kNondeterministic, "results", first, second, sizeof(SampleResult));
    if (c.rows < 2) continue;
    CaseInput beside = c.logits.copy();
    for (int r = 1; r < c.rows; r += 2) beside.fill_row_nan(r);
    const std::vector<uint8_t> beside_nan = s.launch(backend, tactic, c, beside, examination);
    examination.judge_same(VerdictCode::kRowDependent, "results", first, beside_nan, sizeof(SampleResult), 2);
    const std::vector<SampleResult> nan_rows = results_of(beside_nan);
    for (size_t r = 1; r < nan_rows.size(); r += 2)
      if (nan_rows[r].token != -1)
        examination.fail_with(
            refuse(VerdictCode::kWrongSelection, fmt::format("{}", nan_rows[r].token), "-1",
                   fmt::format("row {}: drew token {} from NaN logits, must say -1", r, nan_rows[r].token)));
  }
}

template <>
std::function<void()> Trial<SampleOp>::typical_launch(const Backend<SampleOp>& backend, const Tactic& tactic,
                                                      int rows) {
  State& s = *state_;
  struct Launch {
    std::shared_ptr<CaseInput> logits;
    std::vector<SampleRow> params;
    std::unique_ptr<Place> place = host_place();
    std::unique_ptr<SampleStage> stage;
    const DeviceSample* device = nullptr;
    Buffer ws;
  };
  auto l = std::make_shared<Launch>();
  CaseRandom random(s.context.seed);
  if (s.typical.first != rows) {
    s.typical = {rows, std::make_shared<CaseInput>(rows, s.problem.vocab, DType::kF32)};
    // So many rows are drawn, the others are their copies: each draws its token by another random number.
    const int drawn = std::min(rows, kDrawnRows);
    CaseInput some(drawn, s.problem.vocab, DType::kF32);
    CaseRandom of_logits(s.context.seed + 1);
    some.fill_normal(of_logits, 3);
    const size_t row_bytes = static_cast<size_t>(s.problem.vocab) * sizeof(float);
    for (int r = 0; r < rows; ++r)
      std::memcpy(s.typical.second->view().as<uint8_t>() + static_cast<size_t>(r) * row_bytes,
                  some.view().as<uint8_t>() + static_cast<size_t>(r % drawn) * row_bytes, row_bytes);
  }
  l->logits = s.typical.second;
  for (int r = 0; r < rows; ++r) l->params.push_back({.temperature = 0.7f, .top_p = 0.95f, .random = random.uniform()});
  l->stage = std::make_unique<SampleStage>(rows, *l->place);
  l->device = &l->stage->fill(l->params);
  l->ws = Buffer(workspace_bytes(backend, tactic, s.problem, rows, s.context.team->members()));
  return [this, l, &backend, tactic, rows] {
    Stream stream = state_->context.stream();
    backend.run(tactic,
                {state_->problem,
                 rows,
                 l->logits->view(),
                 l->params,
                 l->stage->results(static_cast<size_t>(rows)),
                 {l->ws.data(), l->ws.size()},
                 l->device},
                stream);
  };
}

template class Trial<SampleOp>;

}  // namespace mettle
