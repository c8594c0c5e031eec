#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <map>
#include <numeric>

#include "ops/attention_cases.h"
#include "ops/case_rows.h"
#include "ops/oracle.h"
#include "prove/replay.h"
#include "prove/timed_weights.h"
#include "prove/trial.h"

namespace mettle {
namespace {

// Rows of every second sequence.
std::vector<char> odd_sequences(const CaseBatch& batch) {
  std::vector<char> odd(static_cast<size_t>(batch.rows));
  for (size_t s = 1; s < batch.sequences.size(); s += 2)
    for (int r = 0; r < batch.sequences[s].q_len; ++r) odd[static_cast<size_t>(batch.sequences[s].first_row + r)] = 1;
  return odd;
}

}  // namespace

template <>
struct Trial<AttentionOp>::State {
  struct Launched {
    std::vector<uint8_t> partial, k, v;  // k, v: the whole caches
  };
  struct CaseState {
    std::vector<int> rows;  // that the oracle computes
    oracle::AppendExpected append;
    std::vector<int64_t> places;  // cache row of every row of the step
    // Expected values hold for one state of the caches and one declaration.
    std::map<std::pair<std::string, std::string>, Expected> partial;
  };

  AttentionProblem problem;
  TrialContext context;
  std::vector<AttentionCase> cases;  // none when nothing is proved
  std::vector<CaseState> states;
  Verdict packing;
  std::pair<int, std::shared_ptr<AttentionCase>> typical;  // of so many rows, for all tactics that are timed
  std::unique_ptr<TimedWeights<AttentionWeights>> timed;   // of the typical cases, which share them
  int64_t width() const { return int64_t{problem.kv_heads} * problem.head_dim; }
  TensorView cache_view(void* data, const AttentionCase& c) const {
    return {data, problem.cache_dtype(), {c.blocks, problem.block_size, problem.kv_heads, problem.head_dim}};
  }
  int64_t cache_row_bytes() const { return width() * static_cast<int64_t>(size_of(problem.cache_dtype())); }
  int64_t work(const AttentionCase& c) const;
  Launched launch(const Backend<AttentionOp>& backend, const Tactic& tactic, const AttentionCase& c,
                  const CaseState& state, bool odd_nan, int pass, Examination* examination) const;
  void check_caches(const AttentionCase& c, const CaseState& state, const Launched& l, const CaseInput& before_k,
                    const CaseInput& before_v, Examination& examination) const;
  void prepare(size_t i, const Backend<AttentionOp>& backend);
  void judge(size_t i, const Launched& l, const Backend<AttentionOp>& backend, Examination& examination);
};

template <>
Trial<AttentionOp>::~Trial() = default;

template <>
Trial<AttentionOp>::Trial(const AttentionProblem& problem, const TrialContext& context)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.problem = problem;
  s.context = context;
  if (!context.proves) return;
  s.cases = attention_cases(problem, context.seed, context.work, context.layout());
  s.states.resize(s.cases.size());
  const AttentionCaseWeights* last = nullptr;
  for (const AttentionCase& c : s.cases) {
    context.alive();
    if (c.weights.get() == last || !s.packing.ok()) continue;
    last = c.weights.get();
    s.packing = prove_packing("qkv", last->packed.qkv, last->raw.qkv);
    if (s.packing.ok()) s.packing = prove_packing("out", last->packed.out, last->raw.out);
  }
}

// Of the oracle, a row on average: projections, and every visible key four times over (errors beside values).
int64_t Trial<AttentionOp>::State::work(const AttentionCase& c) const {
  int64_t keys = 0;
  for (const BatchSequence& s : c.batch.sequences) keys += int64_t{s.q_len} * (s.ctx_len + s.q_len);
  return int64_t{problem.hidden} * (problem.qkv_rows() + int64_t{problem.heads} * problem.head_dim) +
         4 * keys / c.batch.rows * problem.heads * problem.head_dim;
}

Trial<AttentionOp>::State::Launched Trial<AttentionOp>::State::launch(const Backend<AttentionOp>& backend,
                                                                      const Tactic& tactic, const AttentionCase& c,
                                                                      const CaseState& state, bool odd_nan, int pass,
                                                                      Examination* examination) const {
  const TrialBatch on_device(context, c.batch.batch());
  const Batch& batch = on_device.batch();
  CaseInput x = c.x.copy(), k = c.k_cache.copy(), v = c.v_cache.copy();
  if (odd_nan) {
    const std::vector<char> odd = odd_sequences(c.batch);
    for (int r = 0; r < batch.rows; ++r)
      if (odd[static_cast<size_t>(r)] != 0) x.fill_row_nan(r);
    for (size_t s = 1; s < batch.sequences.size(); s += 2)
      for (int64_t i = 0; i < batch.sequences[s].ctx_len; ++i) {
        const int64_t row = int64_t{batch.sequences[s].block_table[i / problem.block_size]} * problem.block_size +
                            i % problem.block_size;
        k.fill_row_nan(row);
        v.fill_row_nan(row);
      }
  }
  Guarded partial("partial", {batch.rows, problem.hidden}, DType::kF32);
  partial.prefill(pass);
  Guarded k_cache("k_cache", {k.rows(), k.cols()}, problem.cache_dtype());
  Guarded v_cache("v_cache", {v.rows(), v.cols()}, problem.cache_dtype());
  for (Guarded* g : {&k_cache, &v_cache}) g->prefill(pass);
  std::memcpy(k_cache.body(), k.view().data, k_cache.bytes());
  std::memcpy(v_cache.body(), v.view().data, v_cache.bytes());
  GuardedWorkspace ws(workspace_bytes(backend, tactic, problem, batch.rows, context.team->members()));
  const AttentionArgs args{problem,
                           &batch,
                           x.view(),
                           &c.weights->packed,
                           cache_view(k_cache.body(), c),
                           cache_view(v_cache.body(), c),
                           partial.view(),
                           ws.arm()};
  check_args(args);
  run_replayed(context, backend, tactic, args, pass == 1 ? examination : nullptr);
  Launched l{partial.copy(), k_cache.copy(), v_cache.copy()};
  if (examination != nullptr) {
    examination->demand(k_cache.check_guards());
    examination->demand(v_cache.check_guards());
    examination->demand(ws.check());
    examination->demand(partial.check());
    check_caches(c, state, l, k, v, *examination);
  }
  return l;
}

// Only the rows of the step may change.
void Trial<AttentionOp>::State::check_caches(const AttentionCase& c, const CaseState& state, const Launched& l,
                                             const CaseInput& before_k, const CaseInput& before_v,
                                             Examination& examination) const {
  std::vector<char> written(static_cast<size_t>(c.k_cache.rows()));
  for (const int64_t at : state.places) written[static_cast<size_t>(at)] = 1;
  const int64_t bytes = cache_row_bytes();
  for (int64_t row = 0; row < c.k_cache.rows(); ++row) {
    if (written[static_cast<size_t>(row)] != 0) continue;
    for (const auto& [name, after, before] : {std::tuple{"k_cache", l.k.data(), before_k.view().as<uint8_t>()},
                                              std::tuple{"v_cache", l.v.data(), before_v.view().as<uint8_t>()}})
      if (std::memcmp(after + row * bytes, before + row * bytes, static_cast<size_t>(bytes)) != 0)
        examination.fail_with(
            refuse(VerdictCode::kOverrun,
                   fmt::format("block {} position {}", row / problem.block_size, row % problem.block_size),
                   "the rows of the step",
                   fmt::format("{}: wrote block {} position {}, which is no row of the step", name,
                               row / problem.block_size, row % problem.block_size)));
  }
}

void Trial<AttentionOp>::State::prepare(size_t i, const Backend<AttentionOp>& backend) {
  const AttentionCase& c = cases[i];
  CaseState& state = states[i];
  if (!state.places.empty()) return;
  const Batch batch = c.batch.batch();
  for (const BatchSequence& s : batch.sequences)
    for (int r = 0; r < s.q_len; ++r) {
      const int64_t position = int64_t{s.ctx_len} + r;
      state.places.push_back(int64_t{s.block_table[position / problem.block_size]} * problem.block_size +
                             position % problem.block_size);
    }
  const Batch judged = c.batch.judged();
  state.rows = case_sample_rows(judged.rows, static_cast<int>(std::max<int64_t>(2 * kOracleWork / work(c), 2)));
  if (c.batch.twins > 0) {
    state.rows.resize(static_cast<size_t>(judged.rows));
    std::iota(state.rows.begin(), state.rows.end(), 0);
  }
  // The selector's rotary dims are zero, but its norms are not exact: only what follows the softmax is.
  const TensorView x = c.x.view();
  state.append =
      oracle::attention_append(problem, c.weights->raw, judged, {x.data, x.dtype, {judged.rows, problem.hidden}},
                               {.numerics = backend.numerics});
  context.alive();
}

void Trial<AttentionOp>::State::judge(size_t i, const Launched& l, const Backend<AttentionOp>& backend,
                                      Examination& examination) {
  const AttentionCase& c = cases[i];
  CaseState& state = states[i];
  const auto widened = [&](const std::vector<uint8_t>& cache) {
    std::vector<float> out;
    for (const int64_t place : state.places)
      for (int64_t d = 0; d < width(); ++d) {
        const auto at = static_cast<size_t>(place * width() + d);
        switch (problem.cache_dtype()) {
          case DType::kE4M3:
            out.push_back(e4m3_to_float(cache[at]));
            break;
          case DType::kBF16:
            out.push_back(bf16_to_float(reinterpret_cast<const uint16_t*>(cache.data())[at]));
            break;
          default:
            out.push_back(reinterpret_cast<const float*>(cache.data())[at]);
        }
      }
    return out;
  };
  const std::vector<float> k = widened(l.k), v = widened(l.v);
  for (const std::vector<float>* rows : {&k, &v})
    for (const float x : *rows)
      if (!std::isfinite(x))
        examination.fail_with(
            refuse(VerdictCode::kIncompleteWrite, "NaN", "the appended row",
                   fmt::format("an appended row of {} was not written or is not finite", rows == &k ? "k" : "v")));
  const auto appended = static_cast<size_t>(c.batch.judged().rows * width());
  const std::span<const float> judged_k = std::span(k).first(appended), judged_v = std::span(v).first(appended);
  examination.judge_elements("k", state.append.k, judged_k);
  examination.judge_elements("v", state.append.v, judged_v);
  for (int r = c.batch.judged().rows; r < c.batch.rows; ++r) {
    const auto row = static_cast<size_t>(r), twin = row % static_cast<size_t>(c.batch.twins);
    examination.judge_twins("k by places", l.k, cache_row_bytes(), state.places[row], state.places[twin]);
    examination.judge_twins("v by places", l.v, cache_row_bytes(), state.places[row], state.places[twin]);
    examination.judge_twins("partial", l.partial, int64_t{problem.hidden} * 4, r, static_cast<int64_t>(twin));
  }
  std::string caches(reinterpret_cast<const char*>(k.data()), k.size() * sizeof(float));
  caches.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float));
  const auto [at, fresh] = state.partial.try_emplace({std::move(caches), backend.numerics.text()});
  if (fresh) {
    auto* k_data = const_cast<uint8_t*>(l.k.data());
    auto* v_data = const_cast<uint8_t*>(l.v.data());
    const Batch batch = c.batch.batch();
    at->second = expect_rows(*context.team, state.rows, [&](std::span<const int> rows) {
      return oracle::attention(problem, c.weights->raw, batch, c.x.view(), cache_view(k_data, c), cache_view(v_data, c),
                               rows, {.numerics = backend.numerics, .exact = c.exact});
    });
    context.alive();
  }
  const std::vector<float> got = pick_rows(floats(l.partial), problem.hidden, state.rows);
  if (c.exact)
    examination.judge_exact("partial", at->second, got, state.rows);
  else
    examination.judge_elements("partial", at->second, got, state.rows);
  if (!c.generic) return;
  examination.collect("k", state.append.k, judged_k);
  examination.collect("v", state.append.v, judged_v);
  examination.collect("partial", at->second, got);
}

template <>
void Trial<AttentionOp>::prove(const Backend<AttentionOp>& backend, const Tactic& tactic, Examination& examination) {
  State& s = *state_;
  examination.begin("packing");
  examination.demand(s.packing);
  for (size_t i = 0; i < s.cases.size(); ++i) {
    const AttentionCase& c = s.cases[i];
    examination.begin(c.kind);
    s.prepare(i, backend);
    const State::CaseState& state = s.states[i];
    const State::Launched first = s.launch(backend, tactic, c, state, false, 0, &examination);
    s.judge(i, first, backend, examination);
    if (!c.generic) continue;
    const State::Launched second = s.launch(backend, tactic, c, state, false, 1, &examination);
    const int64_t row_bytes = int64_t{s.problem.hidden} * 4;
    if (backend.numerics.deterministic) {
      examination.judge_same(VerdictCode::kNondeterministic, "k_cache", first.k, second.k, s.cache_row_bytes());
      examination.judge_same(VerdictCode::kNondeterministic, "v_cache", first.v, second.v, s.cache_row_bytes());
      examination.judge_same(VerdictCode::kNondeterministic, "partial", first.partial, second.partial, row_bytes);
    } else {
      s.judge(i, second, backend, examination);
    }
    if (c.batch.sequences.size() < 2 || c.batch.twins > 0) continue;
    // Rows of one sequence see each other; other sequences must not matter.
    State::Launched beside_nan = s.launch(backend, tactic, c, state, true, 0, nullptr);
    const std::vector<char> odd = odd_sequences(c.batch);
    for (size_t r = 0; r < odd.size(); ++r)
      if (odd[r] != 0)
        std::memcpy(beside_nan.partial.data() + r * static_cast<size_t>(row_bytes),
                    first.partial.data() + r * static_cast<size_t>(row_bytes), static_cast<size_t>(row_bytes));
    examination.judge_same(VerdictCode::kRowDependent, "partial", first.partial, beside_nan.partial, row_bytes);
  }
}

template <>
std::function<void()> Trial<AttentionOp>::typical_launch(const Backend<AttentionOp>& backend, const Tactic& tactic,
                                                         int rows) {
  State& s = *state_;
  struct Launch {
    std::shared_ptr<AttentionCase> c;
    std::unique_ptr<TrialBatch> batch;
    Guarded partial;
    Buffer ws;
  };
  auto l = std::make_shared<Launch>();
  if (s.typical.first != rows)
    s.typical = {rows, std::make_shared<AttentionCase>(attention_typical_case(
                           s.problem, rows, s.context.timed_sequences(rows), 256, s.context.seed, s.context.layout(),
                           s.typical.second == nullptr ? nullptr : s.typical.second->weights))};
  l->c = s.typical.second;
  if (s.timed == nullptr) s.timed = timed_weights(l->c->weights->packed, s.context);
  l->batch = std::make_unique<TrialBatch>(s.context, l->c->batch.batch());
  l->partial = Guarded("partial", {rows, s.problem.hidden}, DType::kF32);
  l->ws = Buffer(workspace_bytes(backend, tactic, s.problem, rows, s.context.team->members()));
  return [this, l, &backend, tactic] {
    State& st = *state_;
    Stream stream = st.context.stream();
    backend.run(tactic,
                {st.problem,
                 &l->batch->batch(),
                 l->c->x.view(),
                 st.timed->next(),
                 st.cache_view(l->c->k_cache.view().data, *l->c),
                 st.cache_view(l->c->v_cache.view().data, *l->c),
                 l->partial.view(),
                 {l->ws.data(), l->ws.size()}},
                stream);
  };
}

template class Trial<AttentionOp>;

}  // namespace mettle
