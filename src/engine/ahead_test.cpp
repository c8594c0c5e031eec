// Steps that run ahead of what the host has heard: on a CPU, where a probe asks for them, by the same code as on a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "engine/test_support.h"

namespace mettle {
namespace {

using namespace mettle::testing;
using ::testing::HasSubstr;

const std::vector<int32_t> kPrompt = {300, 301, 302, 303, 304, 305, 306};

Probe ahead_probe() {
  Probe probe;
  probe.choices = std::make_shared<UnprovedChoices>("cpu_gemv");
  probe.watch_every = 100'000;  // a step that is looked at is not run ahead
  probe.ahead = std::make_shared<std::atomic<uint64_t>>(0);
  return probe;
}

std::unique_ptr<Engine> step_by_step(EngineOptions options) {
  Probe probe = ahead_probe();
  probe.ahead = nullptr;
  return start_probed(options, probe);
}

struct Request {
  std::vector<int32_t> prompt;
  SamplingParams params;
};

// Greedy and drawn, long and short, with and without what the host must count.
std::vector<Request> requests(int count, bool penalties) {
  std::vector<Request> all;
  for (int i = 0; i < count; ++i) {
    Request r{.prompt = kPrompt, .params = greedy(1 + i * 5 % 23)};
    for (int t = 0; t < i; ++t) r.prompt.push_back(310 + t);
    r.params.seed = static_cast<uint64_t>(i);
    r.params.ignore_eos = i % 4 != 3;
    if (i % 3 == 1) r.params.temperature = 0.9, r.params.top_p = 0.95;
    if (i % 5 == 2) r.params.min_tokens = r.params.max_tokens / 2, r.params.ignore_eos = false;
    if (i % 5 == 4) r.params.top_logprobs = 3;
    if (i % 7 == 3) r.params.logit_bias = {{330 + i, 4.f}};
    if (penalties && i % 4 == 1) r.params.frequency = 0.5, r.params.repetition = 1.2;
    all.push_back(std::move(r));
  }
  return all;
}

struct Text {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  Finish finish = Finish::kNone;
  int32_t stop_token = -1;
  bool operator==(const Text&) const = default;
};

std::vector<Text> texts(Engine& engine, const std::vector<Request>& all) {
  std::vector<Reply> replies(all.size());
  for (size_t i = 0; i < all.size(); ++i) engine.submit(all[i].prompt, all[i].params, replies[i].listener());
  std::vector<Text> out;
  for (Reply& reply : replies) {
    const TokenEvent last = reply.wait();
    EXPECT_NE(last.finish, Finish::kError) << last.error;
    out.push_back({.tokens = reply.tokens(), .finish = last.finish, .stop_token = last.stop_token});
    for (const TokenEvent& event : reply.events()) out.back().logprobs.push_back(event.logprob);
  }
  engine.drain(0);
  for (Reply& reply : replies) {
    EXPECT_EQ(reply.finals(), 1);
    EXPECT_EQ(reply.after_final(), 0);
  }
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.blocks_used + stats.slots_used + stats.running + stats.waiting, 0);
  return out;
}

TEST(Ahead, TextsAreThoseOfStepByStep) {
  for (const bool penalties : {false, true}) {
    const std::vector<Request> all = requests(24, penalties);
    const Probe probe = ahead_probe();
    const auto engine = start_probed(tiny_options(), probe);
    EXPECT_EQ(texts(*engine, all), texts(*step_by_step(tiny_options()), all));
    if (!penalties) {  // with them none may: one of those with a penalty is the longest
      EXPECT_GT(*probe.ahead, 10u);
    } else {
      EXPECT_EQ(*probe.ahead, 0u);
    }
    EXPECT_LT(*probe.ahead, engine->stats().steps);
  }
}

TEST(Ahead, OneRequestRunsAheadButForItsFirstAndLastToken) {
  const Probe probe = ahead_probe();
  const auto engine = start_probed(tiny_options(), probe);
  Request r{.prompt = kPrompt, .params = greedy(20)};
  r.params.ignore_eos = true;
  texts(*engine, {r});
  EXPECT_EQ(engine->stats().steps, 20u);
  EXPECT_EQ(*probe.ahead, 19u);
}

// The row of the step ahead is then computed for nothing: neither heard of nor counted.
TEST(Ahead, AStopTokenEndsARequestAtItsPlace) {
  std::vector<Request> all = requests(6, false);
  for (Request& r : all) r.params.max_tokens = 30, r.params.min_tokens = 0, r.params.ignore_eos = true;
  const auto plain = step_by_step(tiny_options());
  const std::vector<Text> whole = texts(*plain, all);
  for (size_t i = 0; i < all.size(); i += 2) all[i].params.stop_ids = {whole[i].tokens[5 + i]};
  const Probe probe = ahead_probe();
  const auto engine = start_probed(tiny_options(), probe);
  const auto again = step_by_step(tiny_options());
  const std::vector<Text> have = texts(*engine, all);
  EXPECT_EQ(have, texts(*again, all));
  EXPECT_EQ(have[0].finish, Finish::kStop);
  EXPECT_GT(*probe.ahead, 20u);
  EXPECT_EQ(engine->stats().generated_tokens, again->stats().generated_tokens);
}

TEST(Ahead, AFullCacheIsNoneOfItsBusiness) {
  EngineOptions options = tiny_options();
  options.context_length = 96;
  options.cache_tokens = 112;
  options.max_running = 4;
  std::vector<Request> all = requests(12, false);
  for (Request& r : all) r.params.max_tokens = 60, r.params.ignore_eos = true;
  const Probe probe = ahead_probe();
  const auto engine = start_probed(options, probe);
  const std::vector<Text> have = texts(*engine, all);
  EXPECT_GT(engine->stats().preemptions, 0u);
  EXPECT_GT(*probe.ahead, 0u);
  for (const Text& text : have) EXPECT_EQ(text.tokens.size(), 60u);
}

// Requests come and go at any moment; those that are left have their text.
TEST(Ahead, ArrivalsAndCancelsAtAnyMoment) {
  std::vector<Request> all = requests(40, true);
  for (Request& r : all) r.params.max_tokens += 20;
  const std::vector<Text> need = texts(*step_by_step(tiny_options()), all);
  const Probe probe = ahead_probe();
  const auto engine = start_probed(tiny_options(), probe);
  std::vector<Reply> replies(all.size());
  std::mt19937 random(3);
  for (size_t i = 0; i < all.size(); ++i) {
    const uint64_t id = engine->submit(all[i].prompt, all[i].params, replies[i].listener());
    if (random() % 2 == 0) replies[i].wait_for_tokens(1 + random() % 6);
    if (i % 4 == 0) engine->cancel(id);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const TokenEvent last = replies[i].wait();
    const std::vector<int32_t> tokens = replies[i].tokens();
    EXPECT_EQ(replies[i].finals(), 1);
    EXPECT_LE(tokens.size(), need[i].tokens.size());
    if (last.finish == Finish::kCancelled) {
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), need[i].tokens.begin())) << i;
    } else {
      EXPECT_EQ(tokens, need[i].tokens) << i;
    }
  }
  engine->drain(0);
  EXPECT_EQ(engine->stats().blocks_used + engine->stats().slots_used, 0);
  EXPECT_GT(*probe.ahead, 0u);
}

// A backend that fails, as a lost device does or as one step may, in a step that runs ahead.
TEST(Ahead, AFailureOfAStepAheadEndsEveryRequestOnce) {
  static std::atomic<int> calls_to_go;
  static Code code;
  static Choice<MoeOp> right;
  class Failing : public UnprovedChoices {
   public:
    Choices<MoeOp> choose(const MoeProblem& p) override {
      Choices<MoeOp> choices = UnprovedChoices::choose(p);
      right = choices.by_bucket[0];
      static Backend<MoeOp> backend;
      backend = *right.backend;
      backend.run = [](const Tactic& tactic, const MoeArgs& args, Stream& stream) {
        if (--calls_to_go == 0) fail(code, "planted");
        right.backend->run(tactic, args, stream);
      };
      for (auto& choice : choices.by_bucket) choice.backend = &backend;
      return choices;
    }
  };
  for (const Code what : {Code::kDevice, Code::kInternal}) {
    code = what;
    calls_to_go = 1'000'000;
    Probe probe = ahead_probe();
    probe.choices = std::make_shared<Failing>();
    const auto engine = start_probed(tiny_options(), probe);
    std::vector<Reply> replies(3);
    SamplingParams params = greedy(400);
    params.ignore_eos = true;
    for (Reply& reply : replies) engine->submit(kPrompt, params, reply.listener());
    for (Reply& reply : replies) reply.wait_for_tokens(3);
    EXPECT_GT(*probe.ahead, 0u);
    calls_to_go = 1;
    for (Reply& reply : replies) {
      EXPECT_EQ(reply.wait().finish, Finish::kError);
      EXPECT_THAT(reply.wait().error, HasSubstr("planted"));
    }
    if (what == Code::kInternal) {  // it goes on, and nothing is left of the step that failed
      Reply next;
      engine->submit(kPrompt, greedy(4), next.listener());
      EXPECT_NE(next.wait().finish, Finish::kError);
      EXPECT_EQ(next.finals(), 1);
    }
    engine->drain(0);
    for (Reply& reply : replies) EXPECT_EQ(reply.finals(), 1);
    EXPECT_EQ(engine->stats().healthy, what == Code::kInternal);
    EXPECT_EQ(engine->stats().blocks_used + engine->stats().slots_used, 0);
  }
}

}  // namespace
}  // namespace mettle
