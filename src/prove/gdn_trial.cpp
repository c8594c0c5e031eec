#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <map>

#include "ops/gdn_cases.h"
#include "ops/oracle.h"
#include "prove/replay.h"
#include "prove/timed_weights.h"
#include "prove/trial.h"

namespace mettle {

template <>
struct Trial<GdnOp>::State {
  struct Launched {
    std::vector<uint8_t> partial, conv_state, state;  // the whole of the states
  };

  GdnProblem problem;
  TrialContext context;
  std::vector<GdnCase> cases;                        // none when nothing is proved
  std::pair<int, std::shared_ptr<GdnCase>> typical;  // of so many rows, for all tactics that are timed
  std::unique_ptr<TimedWeights<GdnWeights>> timed;   // of the typical cases, which share them
  // Of each case by declaration; [1]: the exact states.
  std::vector<std::map<std::string, std::array<oracle::GdnExpected, 2>>> expected;
  Verdict packing;

  int64_t conv_floats() const { return int64_t{problem.channels()} * (problem.conv - 1); }
  int64_t state_floats() const { return int64_t{problem.value_heads} * problem.dk * problem.dv; }
  TensorView conv_view(void* data, const GdnCase& c) const {
    return {data, DType::kF32, {c.slots, problem.channels(), problem.conv - 1}};
  }
  TensorView state_view(void* data, const GdnCase& c) const {
    return {data, DType::kF32, {c.slots, problem.value_heads, problem.dk, problem.dv}};
  }
  Launched launch(const Backend<GdnOp>& backend, const Tactic& tactic, const GdnCase& c, bool odd_nan, int pass,
                  Examination* examination) const;
  const std::array<oracle::GdnExpected, 2>& expect(size_t i, const Backend<GdnOp>& backend);
  oracle::GdnExpected compute(const GdnCase& c, const oracle::Options& options) const;
  void judge(size_t i, const Launched& l, const Backend<GdnOp>& backend, Examination& examination);
};

template <>
Trial<GdnOp>::~Trial() = default;

template <>
Trial<GdnOp>::Trial(const GdnProblem& problem, const TrialContext& context) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.problem = problem;
  s.context = context;
  if (!context.proves) return;
  s.cases = gdn_cases(problem, context.seed, context.work, context.layout());
  s.expected.resize(s.cases.size());
  const GdnCaseWeights* last = nullptr;
  for (const GdnCase& c : s.cases) {
    context.alive();
    if (c.weights.get() == last) continue;
    last = c.weights.get();
    for (const auto& [name, packed, raw] :
         {std::tuple{"qkv", &last->packed.qkv, &last->raw.qkv}, std::tuple{"z", &last->packed.z, &last->raw.z},
          std::tuple{"ba", &last->packed.ba, &last->raw.ba}, std::tuple{"out", &last->packed.out, &last->raw.out}})
      if (s.packing.ok()) s.packing = prove_packing(name, *packed, *raw);
  }
}

Trial<GdnOp>::State::Launched Trial<GdnOp>::State::launch(const Backend<GdnOp>& backend, const Tactic& tactic,
                                                          const GdnCase& c, bool odd_nan, int pass,
                                                          Examination* examination) const {
  const TrialBatch on_device(context, c.batch.batch());
  const Batch& batch = on_device.batch();
  CaseInput x = c.x.copy();
  const CaseInput &conv = c.conv_state, &state = c.state;
  for (size_t i = 1; odd_nan && i < batch.sequences.size(); i += 2) {
    const BatchSequence& s = batch.sequences[i];
    for (int r = 0; r < s.q_len; ++r) x.fill_row_nan(s.first_row + r);
  }
  Guarded partial("partial", {batch.rows, problem.hidden}, DType::kF32);
  partial.prefill(pass);
  Guarded conv_state("conv_state", {conv.rows(), conv.cols()}, DType::kF32);
  Guarded recurrent("state", {state.rows(), state.cols()}, DType::kF32);
  conv_state.arm();
  recurrent.arm();
  std::memcpy(conv_state.body(), conv.view().data, conv_state.bytes());
  std::memcpy(recurrent.body(), state.view().data, recurrent.bytes());
  GuardedWorkspace ws(workspace_bytes(backend, tactic, problem, batch.rows, context.team->members()));
  const GdnArgs args{problem,
                     &batch,
                     x.view(),
                     &c.weights->packed,
                     conv_view(conv_state.body(), c),
                     state_view(recurrent.body(), c),
                     partial.view(),
                     ws.arm()};
  check_args(args);
  run_replayed(context, backend, tactic, args, pass == 1 ? examination : nullptr);
  Launched l{partial.copy(), conv_state.copy(), recurrent.copy()};
  if (examination == nullptr) return l;
  examination->demand(conv_state.check_guards());
  examination->demand(recurrent.check_guards());
  examination->demand(ws.check());
  examination->demand(partial.check());
  // Slots that no sequence writes stay as they are, bit for bit.
  std::vector<char> written(static_cast<size_t>(c.slots));
  for (const BatchSequence& s : batch.sequences) written[static_cast<size_t>(s.state_out)] = 1;
  for (int slot = 0; slot < c.slots; ++slot) {
    if (written[static_cast<size_t>(slot)] != 0) continue;
    for (const auto& [name, after, before, floats] :
         {std::tuple{"conv_state", l.conv_state.data(), conv.view().as<uint8_t>(), conv_floats()},
          std::tuple{"state", l.state.data(), state.view().as<uint8_t>(), state_floats()}}) {
      const auto bytes = static_cast<size_t>(floats) * 4;
      if (std::memcmp(after + static_cast<size_t>(slot) * bytes, before + static_cast<size_t>(slot) * bytes, bytes) !=
          0)
        examination->fail_with(
            refuse(VerdictCode::kOverrun, fmt::format("slot {}", slot), "the slots of the step",
                   fmt::format("{}: wrote slot {}, which no sequence of the step writes", name, slot)));
    }
  }
  return l;
}

// One sequence at a time, spread over the team: they do not see each other.
oracle::GdnExpected Trial<GdnOp>::State::compute(const GdnCase& c, const oracle::Options& options) const {
  const Batch batch = c.batch.judged();
  std::vector<oracle::GdnExpected> parts(batch.sequences.size());
  context.team->run([&](int member) {
    for (size_t i = static_cast<size_t>(member); i < parts.size(); i += static_cast<size_t>(context.team->members())) {
      BatchSequence alone = batch.sequences[i];
      const TensorView x{c.x.view().as<uint8_t>() + static_cast<size_t>(alone.first_row) * problem.hidden *
                                                        size_of(dtype_of(problem.activation)),
                         dtype_of(problem.activation),
                         {alone.q_len, problem.hidden}};
      alone.first_row = 0;
      parts[i] = oracle::gdn(problem, c.weights->raw, {alone.q_len, batch.block_size, {&alone, 1}}, x,
                             conv_view(c.conv_state.view().data, c), state_view(c.state.view().data, c), options);
    }
  });
  oracle::GdnExpected all = std::move(parts.front());
  for (size_t i = 1; i < parts.size(); ++i) {
    Expected &to = all.partial, &from = parts[i].partial;
    to.rows += from.rows;
    to.value.insert(to.value.end(), from.value.begin(), from.value.end());
    to.sys.insert(to.sys.end(), from.sys.begin(), from.sys.end());
    to.rnd.insert(to.rnd.end(), from.rnd.begin(), from.rnd.end());
    to.jump.insert(to.jump.end(), from.jump.begin(), from.jump.end());
    all.state.push_back(std::move(parts[i].state.front()));
    all.conv.push_back(std::move(parts[i].conv.front()));
  }
  context.alive();
  return all;
}

const std::array<oracle::GdnExpected, 2>& Trial<GdnOp>::State::expect(size_t i, const Backend<GdnOp>& backend) {
  const auto [at, fresh] = expected[i].try_emplace(backend.numerics.text());
  if (fresh) {
    at->second[0] = compute(cases[i], {.numerics = backend.numerics});
    if (cases[i].exact_state) at->second[1] = compute(cases[i], {.numerics = backend.numerics, .exact = true});
  }
  return at->second;
}

void Trial<GdnOp>::State::judge(size_t i, const Launched& l, const Backend<GdnOp>& backend, Examination& examination) {
  const GdnCase& c = cases[i];
  const auto& [general, exact] = expect(i, backend);
  const std::span<const float> conv = floats(l.conv_state), state = floats(l.state);
  const Batch judged = c.batch.judged();
  for (size_t s = 0; s < judged.sequences.size(); ++s) {
    const int64_t slot = c.batch.sequences[s].state_out;
    const auto own_conv = conv.subspan(static_cast<size_t>(slot * conv_floats()), static_cast<size_t>(conv_floats()));
    const auto own_state =
        state.subspan(static_cast<size_t>(slot * state_floats()), static_cast<size_t>(state_floats()));
    for (const auto& [name, values] : {std::pair{"conv_state", own_conv}, std::pair{"state", own_state}})
      for (size_t k = 0; k < values.size(); ++k)
        if (!std::isfinite(values[k]))
          examination.fail_with(
              refuse(VerdictCode::kIncompleteWrite, fmt::format("{}", values[k]), "the new state",
                     fmt::format("{}: element {} of slot {} was not written or is not finite", name, k, slot)));
    const std::string of = fmt::format(" of sequence {}", s);
    examination.judge_elements("conv_state" + of, general.conv[s], own_conv);
    if (c.exact_state)
      examination.judge_exact("state" + of, exact.state[s], own_state);
    else
      examination.judge_elements("state" + of, general.state[s], own_state);
    if (c.generic) examination.collect("state", general.state[s], own_state);
  }
  const std::span<const float> partial =
      floats(l.partial).first(static_cast<size_t>(judged.rows) * static_cast<size_t>(problem.hidden));
  examination.judge_elements("partial", general.partial, partial);
  if (c.generic) examination.collect("partial", general.partial, partial);
  for (size_t s = judged.sequences.size(); s < c.batch.sequences.size(); ++s) {
    const BatchSequence &own = c.batch.sequences[s], &twin = c.batch.sequences[s % judged.sequences.size()];
    examination.judge_twins("conv_state by slots", l.conv_state, conv_floats() * 4, own.state_out, twin.state_out);
    examination.judge_twins("state by slots", l.state, state_floats() * 4, own.state_out, twin.state_out);
    examination.judge_twins("partial", l.partial, int64_t{problem.hidden} * 4, own.first_row, twin.first_row);
  }
}

template <>
void Trial<GdnOp>::prove(const Backend<GdnOp>& backend, const Tactic& tactic, Examination& examination) {
  State& s = *state_;
  examination.begin("packing");
  examination.demand(s.packing);
  for (size_t i = 0; i < s.cases.size(); ++i) {
    const GdnCase& c = s.cases[i];
    examination.begin(c.kind);
    const State::Launched first = s.launch(backend, tactic, c, false, 0, &examination);
    s.judge(i, first, backend, examination);
    if (!c.generic) continue;
    const State::Launched second = s.launch(backend, tactic, c, false, 1, &examination);
    const int64_t row_bytes = int64_t{s.problem.hidden} * 4;
    if (backend.numerics.deterministic) {
      examination.judge_same(VerdictCode::kNondeterministic, "partial", first.partial, second.partial, row_bytes);
      examination.judge_same(VerdictCode::kNondeterministic, "conv_state", first.conv_state, second.conv_state,
                             s.conv_floats() * 4);
      examination.judge_same(VerdictCode::kNondeterministic, "state", first.state, second.state, s.state_floats() * 4);
    } else {
      s.judge(i, second, backend, examination);
    }
    if (c.batch.sequences.size() < 2 || c.batch.twins > 0) continue;
    const State::Launched beside_nan = s.launch(backend, tactic, c, true, 0, nullptr);
    for (size_t q = 0; q < c.batch.sequences.size(); q += 2) {
      const BatchSequence& sequence = c.batch.sequences[q];
      const auto part = [](const std::vector<uint8_t>& all, int64_t at, int64_t count, int64_t bytes) {
        return std::vector<uint8_t>(all.begin() + at * bytes, all.begin() + (at + count) * bytes);
      };
      const auto same = [&](const char* what, const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, int64_t at,
                            int64_t count, int64_t bytes) {
        examination.judge_same(VerdictCode::kRowDependent, fmt::format("{} of sequence {}", what, q),
                               part(a, at, count, bytes), part(b, at, count, bytes), bytes);
      };
      same("partial", first.partial, beside_nan.partial, sequence.first_row, sequence.q_len, row_bytes);
      same("conv_state", first.conv_state, beside_nan.conv_state, sequence.state_out, 1, s.conv_floats() * 4);
      same("state", first.state, beside_nan.state, sequence.state_out, 1, s.state_floats() * 4);
    }
  }
}

template <>
std::function<void()> Trial<GdnOp>::typical_launch(const Backend<GdnOp>& backend, const Tactic& tactic, int rows) {
  State& s = *state_;
  struct Launch {
    std::shared_ptr<GdnCase> c;
    std::unique_ptr<TrialBatch> batch;
    Guarded partial;
    Buffer ws;
  };
  auto l = std::make_shared<Launch>();
  if (s.typical.first != rows)
    s.typical = {rows, std::make_shared<GdnCase>(gdn_typical_case(
                           s.problem, rows, s.context.timed_sequences(rows), s.context.seed, s.context.layout(),
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
                 st.conv_view(l->c->conv_state.view().data, *l->c),
                 st.state_view(l->c->state.view().data, *l->c),
                 l->partial.view(),
                 {l->ws.data(), l->ws.size()}},
                stream);
  };
}

template class Trial<GdnOp>;

}  // namespace mettle
