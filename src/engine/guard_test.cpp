// The guard: planted faults in every op of a running engine. Each op is served by the reference under another name,
// with a switch that makes it give one value that is not finite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <thread>
#include <type_traits>

#include "engine/test_support.h"
#include "ops/dispatch.h"
#include "tensor/dtype.h"
#include "tensor/finite.h"

namespace mettle {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace mettle::testing;

// ---- the switch ----------------------------------------------------------------------------------------------------
struct Switch {
  std::atomic<bool> on{false};
  std::atomic<int> steps{0};  // to go until it happens
  std::atomic<bool> always{false};
  std::string op;
  int call = 0;   // of that op in a step: its layer, for moe
  int rank = -1;  // -1: all
};
Switch g_fault;
thread_local int t_call = 0;  // calls of the faulty op in this step, on this rank's thread

void plant(const std::string& op, int call, int steps, bool always = false) {
  g_fault.op = op;
  g_fault.call = call;
  g_fault.always = always;
  g_fault.steps = steps;
  g_fault.on = true;
}

constexpr uint16_t kNanBf16 = 0x7fc0;
void spoil(const TensorView& rows) {
  const int64_t last = rows.shape.elements() - 3;
  if (rows.dtype == DType::kF32)
    rows.as<float>()[last] = NAN;
  else
    rows.as<uint16_t>()[last] = kNanBf16;
}
void spoil(const EmbedArgs& a) { spoil(a.residual); }
void spoil(const JoinArgs& a) { spoil(a.x); }
void spoil(const LinearArgs& a) { spoil(a.y); }
void spoil(const MoeArgs& a) { spoil(a.partial); }
void spoil(const SampleArgs& a) { a.results.back().token = -1; }
// These leave their caches as a kernel would that computed with it.
void spoil(const AttentionArgs& a) {
  spoil(a.partial);
  const BatchSequence& s = a.batch->sequences.back();
  const int position = s.ctx_len + s.q_len - 1, size = a.problem.block_size;
  const int64_t width = int64_t{a.problem.kv_heads} * a.problem.head_dim;
  const int64_t at = (int64_t{s.block_table[position / size]} * size + position % size) * width;
  for (const TensorView* cache : {&a.k_cache, &a.v_cache})
    for (int64_t i = at; i < at + width; ++i)
      if (cache->dtype == DType::kF32)
        cache->as<float>()[i] = NAN;
      else
        cache->as<uint16_t>()[i] = kNanBf16;
}
void spoil(const GdnArgs& a) {
  spoil(a.partial);
  const int slot = a.batch->sequences.back().state_out;
  for (const TensorView* state : {&a.state, &a.conv_state}) {
    const int64_t width = state->shape.elements() / state->shape[0];
    std::fill_n(state->as<float>() + slot * width, width, NAN);
  }
}

template <class Op>
void planted_run(const Tactic& tactic, const typename Op::Args& args, Stream& stream) {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->name == "reference" && b->kind == DeviceKind::kCpu) b->run(tactic, args, stream);
  // Every rank embeds first: a new step of its thread.
  if constexpr (std::is_same_v<Op, EmbedOp>) {
    t_call = 0;
    if (g_fault.on && g_fault.steps > 0) --g_fault.steps;
  }
  if (!g_fault.on || g_fault.op != Op::kName || t_call++ != g_fault.call || g_fault.steps > 0) return;
  if (!g_fault.always) g_fault.on = false;
  spoil(args);
}

// The reference under another name.
template <class Op>
const Backend<Op>* planted(std::string_view name) {
  static std::map<std::string_view, Backend<Op>> all;
  const auto [at, fresh] = all.try_emplace(name);
  if (fresh)
    for (const Backend<Op>* b : backends_of<Op>())
      if (b->name == "reference" && b->kind == DeviceKind::kCpu) {
        at->second = *b;
        at->second.name = name;
        at->second.run = planted_run<Op>;
      }
  return &at->second;
}

enum class Behind { kReference, kAnotherPlanted, kNothing };

class PlantedChoices : public UnprovedChoices {
 public:
  explicit PlantedChoices(Behind behind) : behind_(behind) {}
  Choices<EmbedOp> choose(const EmbedProblem& p) override { return plant_in(UnprovedChoices::choose(p)); }
  Choices<JoinOp> choose(const JoinProblem& p) override { return plant_in(UnprovedChoices::choose(p)); }
  Choices<LinearOp> choose(const LinearProblem& p) override { return plant_in(UnprovedChoices::choose(p)); }
  Choices<MoeOp> choose(const MoeProblem& p) override { return plant_in(UnprovedChoices::choose(p)); }
  Choices<AttentionOp> choose(const AttentionProblem& p) override { return plant_in(UnprovedChoices::choose(p)); }
  Choices<GdnOp> choose(const GdnProblem& p) override { return plant_in(UnprovedChoices::choose(p)); }
  Choices<SampleOp> choose(const SampleProblem& p) override { return plant_in(UnprovedChoices::choose(p)); }

 private:
  template <class Op>
  Choices<Op> plant_in(Choices<Op> choices) const {
    const Choice<Op> reference = choices.by_bucket[0], first{planted<Op>("planted"), reference.tactic};
    const Choice<Op> second{planted<Op>("second"), reference.tactic};
    choices.by_bucket.fill(first);
    if (behind_ == Behind::kReference) choices.behind.fill({reference});
    if (behind_ == Behind::kAnotherPlanted) choices.behind.fill({second});
    return choices;
  }
  Behind behind_;
};

// ---- engines and requests ------------------------------------------------------------------------------------------
class GuardTest : public ::testing::Test {
 protected:
  GuardTest() { g_fault.on = false; }
  ~GuardTest() override { g_fault.on = false; }

  void start(Behind behind = Behind::kReference, EngineOptions options = tiny_options(), uint64_t watch_every = 0) {
    options.cache_bytes = 32 << 20;
    engine_ = start_probed(options, {.choices = std::make_shared<PlantedChoices>(behind), .watch_every = watch_every});
  }
  static std::vector<int32_t> prompt(int i) {
    return std::vector<int32_t>(static_cast<size_t>(4 + 7 * i), 300 + 11 * i);
  }
  std::vector<Reply> run(int requests = 3, int tokens = 30) {
    std::vector<Reply> replies(static_cast<size_t>(requests));
    SamplingParams params = greedy(tokens);
    params.ignore_eos = true;
    for (int i = 0; i < requests; ++i) engine_->submit(prompt(i), params, replies[static_cast<size_t>(i)].listener());
    for (Reply& r : replies) r.wait();
    return replies;
  }
  static std::vector<std::vector<int32_t>> tokens_of(std::vector<Reply>& replies) {
    std::vector<std::vector<int32_t>> all;
    for (Reply& r : replies) all.push_back(r.tokens());
    return all;
  }
  // One request ended with an error, which is returned; the others have their text to the end.
  static std::string one_error(std::vector<Reply>& replies, const std::vector<std::vector<int32_t>>& healthy) {
    std::string error;
    for (size_t i = 0; i < replies.size(); ++i) {
      const TokenEvent& last = replies[i].wait();
      if (last.finish != Finish::kError) {
        EXPECT_EQ(replies[i].tokens(), healthy[i]) << "request " << i;
        continue;
      }
      EXPECT_THAT(error, IsEmpty()) << "two were hit";
      error = last.error;
      // What it got before is right.
      const std::vector<int32_t> got = replies[i].tokens();
      EXPECT_TRUE(got.size() < healthy[i].size() && std::equal(got.begin(), got.end(), healthy[i].begin()));
    }
    return error;
  }
  void expect_nothing_left() {
    const EngineStats s = engine_->stats();
    EXPECT_EQ(s.running + s.waiting + s.blocks_used + s.slots_used, 0);
  }
  std::unique_ptr<Engine> engine_;
};

struct Faulty {
  const char *op, *place;
  int call = 0;
};

TEST_F(GuardTest, TheOpAndItsLayerAreNamedAndTheOthersGoOn) {
  start();
  std::vector<Reply> undisturbed = run();
  const auto healthy = tokens_of(undisturbed);
  ASSERT_THAT(healthy[0], SizeIs(30));
  uint64_t hits = 0;
  for (const Faulty& p :
       {Faulty{"embed", "embed of the tokens (planted/"}, Faulty{"join", "join of layer 0 (planted/"},
        Faulty{"join", "join of layer 1 (planted/", 2}, Faulty{"gdn", "gdn of layer 0 (planted/"},
        Faulty{"attention", "attention of layer "}, Faulty{"moe", "moe of layer 2 (planted/", 2},
        Faulty{"linear", "linear of the output head (planted/"}, Faulty{"sample", "sample of its token"}}) {
    plant(p.op, p.call, 12);
    std::vector<Reply> replies = run();
    EXPECT_THAT(one_error(replies, healthy), HasSubstr(p.place)) << p.op;
    EXPECT_EQ(engine_->stats().nonfinite_rows, ++hits);
    expect_nothing_left();
  }
  // The last join stands behind the layers.
  plant("join", 2 * engine_->info().layers, 12);
  std::vector<Reply> replies = run();
  EXPECT_THAT(one_error(replies, healthy), HasSubstr("join behind the last layer (planted/"));
}

TEST_F(GuardTest, AfterThreeStepsTheNextServesWithoutARestart) {
  start();
  std::vector<Reply> undisturbed = run();
  const auto healthy = tokens_of(undisturbed);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_THAT(engine_->serving().quarantines, IsEmpty());
    plant("moe", i, 10);
    std::vector<Reply> replies = run();
    EXPECT_THAT(one_error(replies, healthy), HasSubstr("moe of layer " + std::to_string(i)));
  }
  const ServingPlan plan = engine_->serving();
  ASSERT_THAT(plan.quarantines, SizeIs(1));
  EXPECT_EQ(plan.quarantines[0].op, "moe");
  EXPECT_EQ(plan.quarantines[0].backend, "planted");
  EXPECT_THAT(plan.quarantines[0].why, HasSubstr("moe of layer 3"));
  ASSERT_THAT(plan.events, SizeIs(1));
  EXPECT_EQ(plan.events[0].events, 3u);
  for (const ServedProblem& p : plan.problems)
    for (const Served& s : p.by_bucket) EXPECT_EQ(s.backend, p.op == "moe" ? "reference" : "planted") << p.problem;
  plant("moe", 0, 0, true);  // who serves now does not look at the switch
  std::vector<Reply> replies = run();
  EXPECT_EQ(tokens_of(replies), healthy);
  EXPECT_TRUE(engine_->stats().healthy);
  // Another op's backend of that name is not touched by it, and goes by its own three.
  for (int i = 0; i < 3; ++i) {
    plant("gdn", 0, 10);
    std::vector<Reply> again = run();
    EXPECT_THAT(one_error(again, healthy), HasSubstr("gdn of layer 0"));
  }
  EXPECT_THAT(engine_->serving().quarantines, SizeIs(2));
}

TEST_F(GuardTest, WithoutAnotherBackendTheEngineStopsAndSaysSo) {
  start(Behind::kNothing);
  for (int i = 0; i < 3; ++i) {
    plant("linear", 0, 5);
    run(1);  // it may be over before a second one is submitted
  }
  Reply reply;
  // The thread that ends it has told the last request before it says so.
  while (engine_->stats().healthy) std::this_thread::yield();
  EXPECT_THAT(engine_->stats().unhealthy_why, HasSubstr("linear has no proved backend left: planted is out"));
  EXPECT_THROW(engine_->submit(prompt(0), greedy(3), reply.listener()), Error);
  EXPECT_THAT(engine_->serving().quarantines, SizeIs(1));
  expect_nothing_left();
}

TEST_F(GuardTest, ABackendIsAcquittedWhenTheNextGivesTheSame) {
  start(Behind::kAnotherPlanted);
  plant("moe", 1, 0, true);
  for (int i = 0; i < 7; ++i) {
    std::vector<Reply> replies = run(1);
    EXPECT_THAT(replies[0].wait().error, HasSubstr("moe of layer 1 (planted/"));
  }
  const ServingPlan plan = engine_->serving();
  EXPECT_THAT(plan.quarantines, IsEmpty());
  EXPECT_EQ(plan.events[0].events, 7u);
  EXPECT_EQ(plan.events[0].counted, 1u);
  for (const ServedProblem& p : plan.problems) EXPECT_EQ(p.by_bucket[0].backend, "planted");
  EXPECT_TRUE(engine_->stats().healthy);
}

TEST_F(GuardTest, BlocksAndSlotsAreCleanWhenTheyAreUsedAgain) {
  EngineOptions options = tiny_options();
  options.context_length = 128;
  options.cache_tokens = 256;  // few blocks: the next ones get what the last ones left
  options.max_running = 2;
  start(Behind::kReference, options);
  std::vector<Reply> undisturbed = run(4);
  const auto healthy = tokens_of(undisturbed);
  int errors = 0;
  for (const char* op : {"gdn", "attention"})
    for (const int steps : {1, 6}) {
      plant(op, 1, steps);
      std::vector<Reply> replies = run(4);
      EXPECT_THAT(one_error(replies, healthy), HasSubstr(op));
      for (int again = 0; again < 2; ++again) {
        std::vector<Reply> after = run(4);
        EXPECT_EQ(tokens_of(after), healthy);
      }
      ++errors;
    }
  EXPECT_EQ(engine_->stats().nonfinite_rows, static_cast<uint64_t>(errors));
}

TEST_F(GuardTest, EveryRankIsLookedAt) {
  EngineOptions options = tiny_options();
  options.threads = 2;
  options.tp_size = 2;
  start(Behind::kReference, options);
  std::vector<Reply> undisturbed = run();
  const auto healthy = tokens_of(undisturbed);
  for (int i = 0; i < 3; ++i) {
    plant("moe", 2, 14);
    std::vector<Reply> replies = run();
    EXPECT_THAT(one_error(replies, healthy), HasSubstr("moe of layer 2 (planted/"));
  }
  EXPECT_THAT(engine_->serving().quarantines, SizeIs(1));
  std::vector<Reply> replies = run();
  EXPECT_EQ(tokens_of(replies), healthy);
}

TEST_F(GuardTest, AChunkWithoutLogitsIsLookedAt) {
  EngineOptions options = tiny_options();
  options.step_tokens = 8;
  start(Behind::kReference, options);
  plant("moe", 1, 1);  // the first of three chunks
  Reply reply;
  engine_->submit(std::vector<int32_t>(20, 301), greedy(5), reply.listener());
  EXPECT_THAT(reply.wait().error, HasSubstr("moe of layer 1 (planted/"));
  EXPECT_THAT(reply.tokens(), IsEmpty());
  EXPECT_EQ(engine_->stats().steps, 1u);
}

TEST_F(GuardTest, WhatWasNotLookedAtIsComputedAgain) {
  start(Behind::kReference, tiny_options(), uint64_t{1} << 40);
  std::vector<Reply> undisturbed = run();
  const auto healthy = tokens_of(undisturbed);
  EXPECT_EQ(engine_->stats().watched_steps, 0u);
  // It happens again: found.
  plant("gdn", 1, 0, true);
  std::vector<Reply> lasting = run(1);
  EXPECT_THAT(lasting[0].wait().error, HasSubstr("gdn of layer 1 (planted/"));
  g_fault.on = false;
  // It does not: not known, but from now on every step is looked at.
  plant("moe", 2, 10);
  std::vector<Reply> once = run();
  EXPECT_THAT(one_error(once, healthy), HasSubstr("computed again they are"));
  EXPECT_THAT(engine_->serving().events, SizeIs(1));
  plant("moe", 2, 10);
  std::vector<Reply> twice = run();
  EXPECT_THAT(one_error(twice, healthy), HasSubstr("moe of layer 2 (planted/"));
  expect_nothing_left();
}

TEST_F(GuardTest, OffLooksAtTokensAlone) {
  EngineOptions options = tiny_options();
  options.guard = Guard::kOff;
  start(Behind::kReference, options);
  for (int i = 0; i < 4; ++i) {
    plant("moe", 2, 4);
    std::vector<Reply> replies = run(1);
    EXPECT_THAT(replies[0].wait().error, HasSubstr("not finite"));
  }
  EXPECT_EQ(engine_->stats().watched_steps, 0u);
  EXPECT_THAT(engine_->serving().events, IsEmpty());
  EXPECT_THAT(engine_->serving().quarantines, IsEmpty());
}

TEST(Finite, EveryPlaceOfARowAndEveryKind) {
  for (const int64_t width : {1, 15, 16, 17, 64, 100}) {
    std::vector<float> values(static_cast<size_t>(3 * width), -3e38f);
    const TensorView rows{values.data(), DType::kF32, Shape{3, width}};
    std::vector<uint16_t> halves(values.size(), 0xff7f);  // the largest, negative
    const TensorView half_rows{halves.data(), DType::kBF16, Shape{3, width}};
    const std::vector<int32_t> where = {2, 0, 1};
    for (int64_t i = 0; i < 3 * width; ++i)
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        std::vector<int32_t> marks(3, kUnmarked);
        mark_not_finite(rows, nullptr, 7, marks.data());
        mark_not_finite(half_rows, nullptr, 7, marks.data());
        EXPECT_EQ(marks, std::vector<int32_t>(3, kUnmarked));
        const auto at = static_cast<size_t>(i);
        values[at] = bad;
        halves[at] = float_to_bf16(bad);
        mark_not_finite(rows, nullptr, 7, marks.data());
        mark_not_finite(rows, nullptr, 9, marks.data());  // the first stays
        std::vector<int32_t> expected(3, kUnmarked);
        expected[at / static_cast<size_t>(width)] = 7;
        EXPECT_EQ(marks, expected);
        std::vector<int32_t> mapped(3, kUnmarked), mapped_to(3, kUnmarked);
        mark_not_finite(half_rows, where.data(), 5, mapped.data());
        mapped_to[static_cast<size_t>(where[at / static_cast<size_t>(width)])] = 5;
        EXPECT_EQ(mapped, mapped_to);
        values[at] = -3e38f;
        halves[at] = 0xff7f;
      }
  }
}

}  // namespace
}  // namespace mettle
