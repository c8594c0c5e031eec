// Properties over shapes and faults that nobody wrote down: RapidCheck draws a problem, and what it finds it makes as
// small as it can. What it found stands as a fixed case (tests/ledger/mutants.md). The draw is the same on every run;
// RC_PARAMS="seed=7 max_success=500" looks elsewhere.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "healthy.h"
#include "ops/problem.h"
#include "prove/examination.h"

namespace mettle::mutants {
namespace {

constexpr uint64_t kSeed = 20'261'130;
constexpr int kExamples = 12;
// Multiply-adds of an op's cases: shapes matter here, not size; for a fault that begins at 64 rows they must reach
// there.
constexpr int64_t kWork = 300'000, kWorkOf64Rows = 12'000'000;

template <class Property>
void check(const char* name, Property&& property) {
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  if (std::getenv("RC_PARAMS") == nullptr) params.seed = kSeed, params.maxSuccess = kExamples;
  rc::detail::TestMetadata metadata;
  metadata.id = metadata.description = name;
  const auto result = rc::detail::checkTestable(std::forward<Property>(property), metadata, params);
  std::ostringstream said;
  rc::detail::printResultMessage(result, said);
  std::cout << name << ": " << said.str() << "\n";
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << said.str();
}

int between(int least, int most) { return *rc::gen::inRange(least, most + 1); }
bool coin() { return *rc::gen::arbitrary<bool>(); }
WeightFormat any_format() {
  return *rc::gen::element(WeightFormat::kBf16, WeightFormat::kNvfp4, WeightFormat::kFp8, WeightFormat::kFp8Block,
                           WeightFormat::kF32);
}
Activation any_activation() { return coin() ? Activation::kBf16 : Activation::kF32; }
// A number of inputs that the format can hold: NVFP4 has blocks of 16.
int inputs(int most, WeightFormat f) {
  return f == WeightFormat::kNvfp4 ? 16 * between(1, most / 16) : between(1, most);
}

template <class P>
P draw();
template <>
JoinProblem draw() {
  return {.hidden = between(1, 200), .ranks = between(0, 5), .plus_one = coin(), .activation = any_activation()};
}
template <>
LinearProblem draw() {
  const WeightFormat f = any_format();
  return {.in = inputs(400, f), .out = between(1, 150), .format = f, .activation = any_activation()};
}
template <>
MoeProblem draw() {
  const WeightFormat f = any_format(), shared = any_format();
  const int experts = between(2, 40), shared_blocks = between(0, 3);
  return {.hidden = 16 * between(1, 10),
          .experts = experts,
          .top_k = between(1, std::min(experts, 10)),
          .width = inputs(80, f),
          .shared_width = 16 * shared_blocks,
          .shared_gate = shared_blocks > 0 && coin(),
          .renormalise = coin(),
          .format = f,
          .shared_format = shared,
          .activation = any_activation()};
}
template <>
AttentionProblem draw() {
  const int kv = between(1, 3), dim = between(2, 40);
  return {.hidden = between(1, 120),
          .heads = kv * between(1, 4),
          .kv_heads = kv,
          .head_dim = dim,
          .rotary_dim = 2 * between(0, dim / 2),
          .gate = coin(),
          .qk_norm = coin(),
          .norm_plus_one = coin(),
          .activation = any_activation(),
          .cache = coin() ? CacheFormat::kActivation : CacheFormat::kE4M3};
}
template <>
GdnProblem draw() {
  const int keys = between(1, 3);
  return {.hidden = between(1, 100),
          .key_heads = keys,
          .value_heads = keys * between(1, 3),
          .dk = between(1, 40),
          .dv = between(1, 70),
          .activation = any_activation()};
}
template <>
EmbedProblem draw() {
  return {between(1, 200), between(1, 200)};
}
template <>
SampleProblem draw() {
  const int vocab = between(1, 600);
  return {.vocab = vocab, .usable = vocab - between(0, std::min(vocab - 1, 20))};
}

template <class Op>
Verdict judged(Trial<Op>& trial, const Backend<Op>& backend, const Tactic& tactic, ProofEntry& entry) {
  Examination examination(entry);
  try {
    trial.prove(backend, tactic, examination);
    examination.finish();
  } catch (const ProofFailure& f) {
    return f.verdict;
  }
  return {};
}

// Whatever the shape, a healthy backend that takes it is proved, and something was compared.
template <class Op>
void healthy_is_proved() {
  check((std::string("healthy ") + std::string(Op::kName)).c_str(), [] {
    using Problem = typename Op::Problem;
    const Problem problem = draw<Problem>();
    const uint64_t seed = *rc::gen::inRange<uint64_t>(1, 1'000'000);
    RC_LOG() << problem.text() << ", seed " << seed << "\n";
    const Device device = this_cpu();
    ThreadTeam team(1);
    const TrialContext context{&team, seed, [] {}, kWork};
    Trial<Op> trial(problem, context);
    for (const Backend<Op>* b : backends_of<Op>()) {
      if (b->kind != DeviceKind::kCpu || !b->supports(problem, device).ok()) continue;
      const std::vector<Tactic> tactics = b->tactics(problem, device);
      const Tactic& t = tactics[seed % tactics.size()];
      ProofEntry entry;
      const Verdict v = judged<Op>(trial, *b, t, entry);
      RC_LOG() << b->name << " " << t.name << ": " << v.sentence << "\n";
      RC_ASSERT(v.ok());
      RC_ASSERT(entry.comparisons > 0u);
    }
  });
}

// One column of some rows is off by a little, from some number of rows on.
struct ColumnFault {
  int from_rows, column, rows;  // rows: 0 all, 1 the last, 2 the first, 3 the odd ones or the only one
  float gain;
} fault;

template <class Op>
void spoiled(const Tactic& tactic, const typename Op::Args& args, Stream& stream) {
  const Backend<Op>& plain = slow_of<Op>();
  plain.run(tactic, args, stream);
  const Grid g = out_of(args);
  if (g.rows < fault.from_rows) return;
  for (int64_t r = 0; r < g.rows; ++r)
    if (fault.rows == 0 || (fault.rows == 1 && r == g.rows - 1) || (fault.rows == 2 && r == 0) ||
        (fault.rows == 3 && (r % 2 == 1 || g.rows == 1)))
      g.at(r, fault.column % g.cols) *= fault.gain;
}

// Whatever the shape and the place, such a fault is convicted: the cases have as many rows, and values there.
template <class Op>
void a_column_off_is_convicted(int most_rows) {
  check((std::string("one column of ") + std::string(Op::kName)).c_str(), [most_rows] {
    using Problem = typename Op::Problem;
    const Problem problem = draw<Problem>();
    fault = {.from_rows = between(1, most_rows),
             .column = between(0, 200),
             .rows = between(0, 3),
             .gain = 1 + std::ldexp(coin() ? 1.f : -1.f, -between(2, 8))};
    RC_LOG() << problem.text() << ": from " << fault.from_rows << " rows on, column " << fault.column << ", rows "
             << fault.rows << ", times " << fault.gain << "\n";
    if (!slow_of<Op>().supports(problem, this_cpu()).ok()) RC_DISCARD("not supported");
    ThreadTeam team(1);
    const TrialContext context{&team, 3, [] {}, kWorkOf64Rows};
    Trial<Op> trial(problem, context);
    Backend<Op> backend = slow_of<Op>();
    backend.name = "spoiled";
    backend.run = spoiled<Op>;
    ProofEntry entry;
    RC_ASSERT(!judged<Op>(trial, backend, backend.tactics(problem, this_cpu()).back(), entry).ok());
  });
}

TEST(Property, HealthyEmbedIsProved) { healthy_is_proved<EmbedOp>(); }
TEST(Property, HealthyJoinIsProved) { healthy_is_proved<JoinOp>(); }
TEST(Property, HealthyLinearIsProved) { healthy_is_proved<LinearOp>(); }
TEST(Property, HealthyMoeIsProved) { healthy_is_proved<MoeOp>(); }
TEST(Property, HealthyAttentionIsProved) { healthy_is_proved<AttentionOp>(); }
TEST(Property, HealthyGdnIsProved) { healthy_is_proved<GdnOp>(); }
TEST(Property, HealthySampleIsProved) { healthy_is_proved<SampleOp>(); }
TEST(Property, AColumnOffIsConvictedInJoin) { a_column_off_is_convicted<JoinOp>(64); }
TEST(Property, AColumnOffIsConvictedInLinear) { a_column_off_is_convicted<LinearOp>(64); }
TEST(Property, AColumnOffIsConvictedInMoe) { a_column_off_is_convicted<MoeOp>(64); }
TEST(Property, AColumnOffIsConvictedInAttention) { a_column_off_is_convicted<AttentionOp>(64); }
TEST(Property, AColumnOffIsConvictedInGdn) { a_column_off_is_convicted<GdnOp>(64); }

}  // namespace
}  // namespace mettle::mutants
