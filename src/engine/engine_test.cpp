// Requests through the engine: every end a request can have, exactly once, with nothing left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/thread_team.h"
#include "engine/test_support.h"

namespace mettle {
namespace {

using namespace mettle::testing;
using ::testing::HasSubstr;

const std::vector<int32_t> kSum = {6136, 276, 200, 33, 40, 71, 35, 19, 6137};

std::unique_ptr<Engine> start_tiny(EngineOptions options, Probe probe = {}) {
  if (options.cache_bytes == EngineOptions{}.cache_bytes) options.cache_bytes = 64 << 20;
  if (probe.choices == nullptr) probe.choices = std::make_shared<UnprovedChoices>("cpu_gemv");
  return start_probed(options, std::move(probe));
}

SamplingParams endless(int max_tokens = 4000) {
  SamplingParams params = greedy(max_tokens);
  params.ignore_eos = true;
  return params;
}

// An engine whose steps stand before their sampling until they are let through: a test that is slow to submit or to
// cancel never finds that its requests have ended by themselves.
class SteppedEngine {
 public:
  // `sampling` is called by each step that is let through.
  explicit SteppedEngine(EngineOptions options, std::function<void()> sampling = {}) : sampling_(std::move(sampling)) {
    Probe probe;
    probe.on_logits = [this](std::span<const ProbedRow>, const TensorView&) { pass(); };
    engine_ = start_tiny(options, std::move(probe));
  }
  ~SteppedEngine() { let_all(); }
  Engine* operator->() const { return engine_.get(); }
  const Engine& operator*() const { return *engine_; }

  void let(int64_t steps) {
    const std::lock_guard lock(mutex_);
    allowed_ += steps;
    standing_ = false;
    changed_.notify_all();
  }
  void let_all() { let(int64_t{1} << 40); }
  // Returns when a step stands; everything of the steps before has been told.
  void wait_for_step() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return standing_; });
  }

 private:
  void pass() {
    {
      std::unique_lock lock(mutex_);
      standing_ = allowed_ == 0;
      changed_.notify_all();
      changed_.wait(lock, [&] { return allowed_ > 0; });
      --allowed_;
    }
    if (sampling_) sampling_();
  }

  std::function<void()> sampling_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t allowed_ = 0;
  bool standing_ = false;
  std::unique_ptr<Engine> engine_;
};

void expect_nothing_left(const Engine& engine) {
  const EngineStats s = engine.stats();
  EXPECT_EQ(s.running, 0);
  EXPECT_EQ(s.waiting, 0);
  EXPECT_EQ(s.blocks_used, 0);
  EXPECT_EQ(s.slots_used, 0);
  EXPECT_EQ(s.requests_accepted, s.requests_finished + s.requests_failed + s.requests_cancelled);
  EXPECT_TRUE(s.healthy) << s.unhealthy_why;
}

TEST(Engine, GreedyContinuationsAreThoseOfTheGoldens) {
  EngineOptions options = tiny_options();
  options.activation = Activation::kF32;
  const auto engine = start_tiny(options, {.choices = unproved_reference_choices()});
  std::ifstream file(METTLE_SOURCE_DIR "/models/golden/golden.json");
  const nlohmann::json prompts = nlohmann::json::parse(file)["prompts"];
  for (const size_t i : {0u, 1u, 9u}) {
    Reply reply;
    engine->submit(prompts[i]["ids"].get<std::vector<int32_t>>(), endless(48), reply.listener());
    EXPECT_EQ(reply.wait().finish, Finish::kLength);
    EXPECT_EQ(reply.tokens(), prompts[i]["continuation"].get<std::vector<int32_t>>()) << prompts[i]["name"];
  }
  expect_nothing_left(*engine);
}

TEST(Engine, StopsAtEndOfSequenceStopIdsAndLength) {
  const auto engine = start_tiny(tiny_options());
  Reply all;
  engine->submit(kSum, endless(12), all.listener());
  EXPECT_EQ(all.wait().finish, Finish::kLength);
  EXPECT_EQ(all.wait().token, all.tokens().back());  // the last token comes with the final event
  const std::vector<int32_t> tokens = all.tokens();
  ASSERT_EQ(tokens.size(), 12u);

  size_t at = 1;  // a token that did not occur before
  while (std::find(tokens.begin(), tokens.begin() + static_cast<long>(at), tokens[at]) !=
         tokens.begin() + static_cast<long>(at))
    ++at;
  SamplingParams params = endless(12);
  params.stop_ids = {tokens[at]};
  Reply stopped;
  engine->submit(kSum, params, stopped.listener());
  EXPECT_EQ(stopped.wait().finish, Finish::kStop);
  EXPECT_EQ(stopped.wait().token, -1);
  EXPECT_EQ(stopped.wait().stop_token, tokens[at]);
  EXPECT_EQ(stopped.tokens(), std::vector<int32_t>(tokens.begin(), tokens.begin() + static_cast<long>(at)));

  params.min_tokens = static_cast<int>(at) + 2;  // the stop id is forbidden until then
  Reply later;
  engine->submit(kSum, params, later.listener());
  later.wait();
  EXPECT_GE(later.tokens().size(), at + 2);
  EXPECT_NE(later.tokens()[at], tokens[at]);
  expect_nothing_left(*engine);
}

TEST(Engine, MaxTokensIsClippedToTheContext) {
  EngineOptions options = tiny_options();
  options.context_length = 32;
  const auto engine = start_tiny(options);
  Reply reply;
  engine->submit(std::vector<int32_t>(20, 7), endless(1000), reply.listener());
  EXPECT_EQ(reply.wait().finish, Finish::kLength);
  EXPECT_EQ(reply.tokens().size(), 12u);
  Reply full;
  engine->submit(std::vector<int32_t>(31, 7), endless(1000), full.listener());
  full.wait();
  EXPECT_EQ(full.tokens().size(), 1u);
}

TEST(Engine, RefusesBadRequestsAndNamesTheField) {
  const auto engine = start_tiny(tiny_options());
  const auto expect = [&](std::vector<int32_t> prompt, const SamplingParams& params, const char* param,
                          const char* words) {
    try {
      engine->submit(std::move(prompt), params, [](const TokenEvent&) { FAIL() << "an event of a refused request"; });
      FAIL() << "accepted: " << words;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kInvalidRequest);
      EXPECT_EQ(e.param, param);
      EXPECT_THAT(e.message, HasSubstr(words));
    }
  };
  const auto with = [](auto change) {
    SamplingParams p;
    change(p);
    return p;
  };
  expect({}, {}, "prompt", "got none");
  expect({1, 6144}, {}, "prompt", "got 6144 at 1");
  expect({-1}, {}, "prompt", "got -1 at 0");
  expect(std::vector<int32_t>(4096, 1), {}, "prompt", "got 4096 tokens");
  const double nan = std::nan(""), inf = INFINITY;
  for (const double bad : {-0.1, 2.1, nan, inf})
    expect({1}, with([&](SamplingParams& p) { p.temperature = bad; }), "temperature", "must be in 0..2");
  for (const double bad : {0.0, 1.1, nan})
    expect({1}, with([&](SamplingParams& p) { p.top_p = bad; }), "top_p", "above 0 and at most 1");
  for (const double bad : {-0.1, 1.1, nan})
    expect({1}, with([&](SamplingParams& p) { p.min_p = bad; }), "min_p", "must be in 0..1");
  for (const double bad : {0.0, -1.0, 10.5, nan})
    expect({1}, with([&](SamplingParams& p) { p.repetition = bad; }), "repetition_penalty", "above 0");
  for (const double bad : {-2.1, 2.1, nan}) {
    expect({1}, with([&](SamplingParams& p) { p.presence = bad; }), "presence_penalty", "must be in -2..2");
    expect({1}, with([&](SamplingParams& p) { p.frequency = bad; }), "frequency_penalty", "must be in -2..2");
  }
  for (const int bad : {0, -5})
    expect({1}, with([&](SamplingParams& p) { p.max_tokens = bad; }), "max_tokens", "at least 1");
  expect({1}, with([](SamplingParams& p) { p.top_k = -1; }), "top_k", "got -1");
  expect({1}, with([](SamplingParams& p) { p.min_tokens = 17; }), "min_tokens", "got 17");
  expect({1}, with([](SamplingParams& p) { p.min_tokens = -1; }), "min_tokens", "got -1");
  expect({1}, with([](SamplingParams& p) { p.top_logprobs = 21; }), "top_logprobs", "got 21");
  expect({1}, with([](SamplingParams& p) { p.logit_bias = {{6144, 1.f}}; }), "logit_bias", "got 6144");
  expect({1}, with([](SamplingParams& p) { p.logit_bias = {{5, 101.f}}; }), "logit_bias", "got 101 for token 5");
  expect({1}, with([](SamplingParams& p) { p.logit_bias = {{5, NAN}}; }), "logit_bias", "got nan");
  expect({1}, with([](SamplingParams& p) { p.logit_bias.assign(1025, {1, 1.f}); }), "logit_bias", "got 1025");
  expect({1}, with([](SamplingParams& p) { p.stop_ids = {-2}; }), "stop_token_ids", "got -2");
  expect({1}, with([](SamplingParams& p) { p.stop_ids.assign(1025, 1); }), "stop_token_ids", "got 1025");
  EXPECT_EQ(engine->stats().requests_accepted, 0u);
}

TEST(Engine, BiasForcesAndForbids) {
  const auto engine = start_tiny(tiny_options());
  SamplingParams params = endless(4);
  params.logit_bias = {{1234, 100.f}};
  Reply forced;
  engine->submit(kSum, params, forced.listener());
  forced.wait();
  EXPECT_EQ(forced.tokens(), std::vector<int32_t>(4, 1234));

  params.presence = 2;  // not enough against a bias of 100
  params.frequency = 2;
  Reply penalised;
  engine->submit(kSum, params, penalised.listener());
  penalised.wait();
  EXPECT_EQ(penalised.tokens(), std::vector<int32_t>(4, 1234));

  Reply free, repeated;
  engine->submit(kSum, endless(24), free.listener());
  free.wait();
  SamplingParams harsh = endless(24);
  harsh.repetition = 10;
  harsh.frequency = 2;
  engine->submit(kSum, harsh, repeated.listener());
  repeated.wait();
  const auto distinct = [](std::vector<int32_t> t) {
    std::sort(t.begin(), t.end());
    return std::unique(t.begin(), t.end()) - t.begin();
  };
  EXPECT_GT(distinct(repeated.tokens()), distinct(free.tokens()));
}

TEST(Engine, LogprobsAreSortedAndHoldTheToken) {
  const auto engine = start_tiny(tiny_options());
  SamplingParams params = endless(5);
  params.top_logprobs = 4;
  Reply reply;
  engine->submit(kSum, params, reply.listener());
  reply.wait();
  ASSERT_EQ(reply.events().size(), 5u);
  for (const TokenEvent& e : reply.events()) {
    ASSERT_EQ(e.top.size(), 4u);
    EXPECT_EQ(e.top[0].first, e.token);  // greedy takes the best
    EXPECT_EQ(e.top[0].second, e.logprob);
    EXPECT_LE(e.logprob, 0);
    for (size_t i = 1; i < 4; ++i) EXPECT_LE(e.top[i].second, e.top[i - 1].second);
  }
  params.top_logprobs = -1;
  Reply without;
  engine->submit(kSum, params, without.listener());
  without.wait();
  EXPECT_TRUE(without.events()[0].top.empty());
}

TEST(Engine, SeedsRepeatAndDiffer) {
  const auto engine = start_tiny(tiny_options());
  const auto run = [&](std::optional<uint64_t> seed) {
    SamplingParams params = endless(16);
    params.temperature = 1.5;
    params.seed = seed;
    Reply reply;
    engine->submit(kSum, params, reply.listener());
    reply.wait();
    return reply.tokens();
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
  EXPECT_NE(run(std::nullopt), run(std::nullopt));
}

TEST(Engine, NonFiniteLogitsEndThatRequestAlone) {
  std::atomic<uint64_t> poisoned{0};
  Probe probe;
  probe.on_logits = [&](std::span<const ProbedRow> rows, const TensorView& logits) {
    for (size_t i = 0; i < rows.size(); ++i)
      if (rows[i].request == poisoned && rows[i].position == static_cast<int>(kSum.size()) + 2)
        logits.as<float>()[static_cast<int64_t>(i) * logits.shape[1] + 17] = NAN;
  };
  const auto engine = start_tiny(tiny_options(), std::move(probe));
  poisoned = 2;
  Reply first, second, third;
  engine->submit(kSum, endless(40), first.listener());
  ASSERT_EQ(engine->submit(kSum, endless(40), second.listener()), 2u);
  engine->submit(kSum, endless(40), third.listener());
  EXPECT_EQ(second.wait().finish, Finish::kError);
  EXPECT_THAT(second.wait().error, HasSubstr("not finite"));
  EXPECT_EQ(second.tokens().size(), 3u);
  EXPECT_EQ(first.wait().finish, Finish::kLength);
  EXPECT_EQ(third.wait().finish, Finish::kLength);
  EXPECT_EQ(engine->stats().nonfinite_rows, 1u);
  EXPECT_EQ(engine->stats().requests_failed, 1u);
  expect_nothing_left(*engine);
}

TEST(Engine, AFailedStepEndsItsRequestsAndNoOthers) {
  std::atomic<bool> fail_now{false};
  Probe probe;
  probe.on_logits = [&](std::span<const ProbedRow>, const TensorView&) {
    if (fail_now.exchange(false)) fail(Code::kInternal, "planted");
  };
  const auto engine = start_tiny(tiny_options(), std::move(probe));
  Reply doomed;
  fail_now = true;
  engine->submit(kSum, endless(8), doomed.listener());
  EXPECT_EQ(doomed.wait().finish, Finish::kError);
  EXPECT_THAT(doomed.wait().error, HasSubstr("planted"));
  Reply next;
  engine->submit(kSum, endless(8), next.listener());
  EXPECT_EQ(next.wait().finish, Finish::kLength);
  expect_nothing_left(*engine);
}

TEST(Engine, AFailedDeviceEndsEveryRequestAndTakesNoMore) {
  std::atomic<bool> fail_now{false};
  EngineOptions options = tiny_options();
  options.max_running = 2;
  std::vector<Reply> replies(4);
  std::atomic<int> heard{-1};  // how many had their final event when it was told that the engine stopped
  options.on_stopped = [&] {
    heard = 0;
    for (Reply& reply : replies) heard += reply.finals();
    heard.notify_all();
  };
  SteppedEngine engine(options, [&] {
    if (fail_now) fail(Code::kDevice, "planted: device lost");
  });
  for (Reply& reply : replies) engine->submit(kSum, endless(), reply.listener());
  engine.let(3);
  engine.wait_for_step();
  EXPECT_EQ(engine->stats().running, 2);
  EXPECT_EQ(engine->stats().waiting, 2);
  EXPECT_EQ(heard, -1);
  EXPECT_TRUE(engine->stats().healthy);
  fail_now = true;
  engine.let_all();
  for (Reply& reply : replies) {
    EXPECT_EQ(reply.wait().finish, Finish::kError);
    EXPECT_THAT(reply.wait().error, HasSubstr("device lost"));
  }
  engine->drain(1e9);
  heard.wait(-1);
  const EngineStats stats = engine->stats();
  EXPECT_FALSE(stats.healthy);
  EXPECT_THAT(stats.unhealthy_why, HasSubstr("device lost"));
  EXPECT_EQ(stats.requests_failed, 4u);
  EXPECT_EQ(stats.running + stats.waiting + stats.blocks_used + stats.slots_used, 0);
  for (Reply& reply : replies) EXPECT_EQ(reply.finals(), 1);
}

TEST(Engine, AnUnhealthyEngineRefusesAndIgnores) {
  Probe probe;
  probe.on_logits = [](std::span<const ProbedRow>, const TensorView&) { fail(Code::kDevice, "planted: device lost"); };
  const auto engine = start_tiny(tiny_options(), std::move(probe));
  Reply last, refused;
  const uint64_t id = engine->submit(kSum, endless(), last.listener());
  last.wait();
  try {
    engine->submit(kSum, endless(), refused.listener());
    FAIL() << "accepted by an engine that stopped";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kDevice);
    EXPECT_THAT(e.message, HasSubstr("engine: stopped after an error: planted: device lost"));
  }
  engine->cancel(id);
  EXPECT_EQ(refused.finals(), 0);
}

TEST(Engine, AFailedStepOfTwoRanksDoesNotHang) {
  EngineOptions options = tiny_options();
  options.tp_size = 2;
  std::atomic<bool> fail_now{true};
  Probe probe;
  probe.on_logits = [&](std::span<const ProbedRow>, const TensorView&) {
    if (fail_now.exchange(false)) fail(Code::kInternal, "planted");
  };
  const auto engine = start_tiny(options, std::move(probe));
  Reply doomed, next;
  engine->submit(kSum, endless(8), doomed.listener());
  EXPECT_EQ(doomed.wait().finish, Finish::kError);
  engine->submit(kSum, endless(8), next.listener());
  EXPECT_EQ(next.wait().finish, Finish::kLength);
}

TEST(Engine, CancelTakesEffectWithinOneStep) {
  SteppedEngine engine(tiny_options());
  Reply reply;
  const uint64_t id = engine->submit(kSum, endless(), reply.listener());
  engine.let(3);
  engine.wait_for_step();
  EXPECT_EQ(reply.tokens().size(), 3u);
  engine->cancel(id);
  engine.let_all();
  EXPECT_EQ(reply.wait().finish, Finish::kCancelled);
  EXPECT_EQ(reply.tokens().size(), 4u);  // one more of the step that stood
  engine->cancel(id);                    // again: ignored
  engine->cancel(id + 100);              // never given out: ignored
  expect_nothing_left(*engine);
  EXPECT_EQ(reply.finals(), 1);
}

TEST(Engine, StormsOfCancellationsLeaveNothing) {
  EngineOptions options = tiny_options();
  options.max_running = 8;
  options.context_length = 128;
  options.cache_tokens = 2 * 128;  // waiting, running and preempted ones are cancelled alike
  const auto engine = start_tiny(options);
  constexpr int kThreads = 4, kRounds = 25;
  std::vector<std::vector<Reply>> replies(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    replies[static_cast<size_t>(t)] = std::vector<Reply>(kRounds);
    threads.emplace_back([&, t] {
      for (int r = 0; r < kRounds; ++r) {
        Reply& reply = replies[static_cast<size_t>(t)][static_cast<size_t>(r)];
        const std::vector<int32_t> prompt(static_cast<size_t>(1 + (t * 31 + r * 17) % 90), 40 + r);
        const uint64_t id = engine->submit(prompt, endless(100), reply.listener());
        if (r % 3 == 0) reply.wait_for_tokens(static_cast<size_t>(1 + r % 4));
        engine->cancel(id);
        if (r % 5 == 0) reply.wait();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (auto& list : replies)
    for (Reply& reply : list) {
      const Finish finish = reply.wait().finish;
      EXPECT_TRUE(finish == Finish::kCancelled || finish == Finish::kLength);
    }
  expect_nothing_left(*engine);
  for (auto& list : replies)
    for (Reply& reply : list) {
      EXPECT_EQ(reply.finals(), 1);
      EXPECT_EQ(reply.after_final(), 0);
    }
  EXPECT_EQ(engine->stats().requests_accepted, uint64_t{kThreads * kRounds});
}

TEST(Engine, FullQueueIsBusy) {
  EngineOptions options = tiny_options();
  options.max_running = 1;
  options.max_waiting = 2;
  std::vector<Reply> replies(4);
  const OnToken first = replies[0].listener();
  EngineStats at_first_token;
  SteppedEngine engine(options);
  std::vector<uint64_t> ids;
  ids.push_back(engine->submit(kSum, endless(), [&](const TokenEvent& event) {
    if (event.token >= 0 && replies[0].tokens().empty()) at_first_token = engine->stats();
    first(event);
  }));
  engine.let(1);
  replies[0].wait_for_tokens(1);
  EXPECT_EQ(at_first_token.running, 1);
  EXPECT_EQ(at_first_token.waiting, 0) << "a request that runs counts as waiting";
  for (size_t i = 1; i < 3; ++i) ids.push_back(engine->submit(kSum, endless(), replies[i].listener()));
  try {
    engine->submit(kSum, endless(), replies[3].listener());
    FAIL() << "accepted a third to wait";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kBusy);
    EXPECT_THAT(e.message, HasSubstr("2 requests wait, at most 2 may"));
  }
  for (const uint64_t id : ids) engine->cancel(id);
  engine.let_all();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(replies[i].wait().finish, Finish::kCancelled);
  EXPECT_EQ(replies[3].finals(), 0);
  expect_nothing_left(*engine);
}

TEST(Engine, DrainWaitsThenCancels) {
  const auto engine = start_tiny(tiny_options());
  Reply fits, endless_one;
  engine->submit(kSum, endless(3), fits.listener());
  engine->drain(1e9);
  EXPECT_EQ(fits.finals(), 1);
  EXPECT_EQ(fits.wait().finish, Finish::kLength);
  EXPECT_THROW(engine->submit(kSum, endless(3), endless_one.listener()), Error);

  const auto other = start_tiny(tiny_options());
  other->submit(kSum, endless(), endless_one.listener());
  other->drain(0);
  EXPECT_EQ(endless_one.finals(), 1);
  EXPECT_EQ(endless_one.wait().finish, Finish::kCancelled);
  expect_nothing_left(*other);
}

TEST(Engine, ShutdownEndsEveryRequestOnce) {
  std::vector<Reply> replies(6);
  {
    EngineOptions options = tiny_options();
    options.max_running = 2;
    const auto engine = start_tiny(options);
    for (Reply& reply : replies) engine->submit(kSum, endless(), reply.listener());
    replies[0].wait_for_tokens(2);
  }
  for (Reply& reply : replies) {
    EXPECT_EQ(reply.finals(), 1);
    EXPECT_EQ(reply.wait().finish, Finish::kCancelled);
    EXPECT_EQ(reply.after_final(), 0);
  }
}

TEST(Engine, AListenerThatThrowsLosesOnlyItsRequest) {
  const auto engine = start_tiny(tiny_options());
  std::atomic<int> calls{0};
  engine->submit(kSum, endless(), [&](const TokenEvent&) {
    ++calls;
    throw std::runtime_error("client gone");
  });
  Reply good;
  engine->submit(kSum, endless(20), good.listener());
  EXPECT_EQ(good.wait().finish, Finish::kLength);
  engine->drain(1e9);
  expect_nothing_left(*engine);
  EXPECT_LE(calls, 3);  // a token, perhaps one more step, the final event
}

TEST(Engine, OneCallPerSiteLayerAndStepWhateverTheRows) {
  EngineOptions options = tiny_options();
  options.step_tokens = 256;
  const auto engine = start_tiny(options);
  const auto counts = [] {
    return std::array<uint64_t, 7>{call_count<EmbedOp>(), call_count<JoinOp>(), call_count<LinearOp>(),
                                   call_count<MoeOp>(),   call_count<GdnOp>(),  call_count<AttentionOp>(),
                                   call_count<SampleOp>()};
  };
  for (const size_t rows : {1u, 2u, 33u, 250u}) {
    const auto before = counts();
    Reply reply;
    engine->submit(std::vector<int32_t>(rows, 99), endless(1), reply.listener());  // one step
    reply.wait();
    const auto after = counts();
    std::array<uint64_t, 7> calls;
    for (size_t i = 0; i < calls.size(); ++i) calls[i] = after[i] - before[i];
    EXPECT_EQ(calls, (std::array<uint64_t, 7>{1, 13, 1, 6, 4, 2, 1})) << rows << " rows";
  }
}

TEST(Engine, NoMoreThreadsThanCoresAreStarted) {
  EngineOptions options = tiny_options();
  options.threads = 1024;
  EXPECT_EQ(start_tiny(options)->info().threads, usable_cores());
  options.threads = 1;
  EXPECT_EQ(start_tiny(options)->info().threads, 1);
}

TEST(Engine, OptionsOutOfRangeAreNamed) {
  const auto expect = [](auto change, const char* words) {
    EngineOptions options = tiny_options();
    change(options);
    try {
      start_tiny(options);
      FAIL() << "accepted: " << words;
    } catch (const Error& e) {
      EXPECT_THAT(e.message, HasSubstr(words));
    }
  };
  expect([](EngineOptions& o) { o.tp_size = 0; }, "tp_size: must be in 1..64, got 0");
  expect([](EngineOptions& o) { o.step_tokens = -1; }, "step_tokens: must be in 0..65536, got -1");
  expect([](EngineOptions& o) { o.max_running = 0; }, "max_running: must be in 1..4096, got 0");
  expect([](EngineOptions& o) { o.threads = -1; }, "threads: must be in 0..1024, got -1");
  expect([](EngineOptions& o) { o.context_length = 5000; }, "must be at most the model's 4096, got 5000");
  expect([](EngineOptions& o) { o.context_length = 4096, o.cache_tokens = 4000; },
         "must hold one context of 4096 tokens, 4000 tokens fit (250 blocks of 16, 1024 bytes a token");
  expect([](EngineOptions& o) { o.deterministic = true, o.step_tokens = 100; },
         "step_tokens: must be in 128..65536, got 100");
}

TEST(Engine, ContextIsLimitedByTheCacheUnlessAskedFor) {
  EngineOptions options = tiny_options();
  options.cache_tokens = 1000;
  const auto engine = start_tiny(options);
  EXPECT_EQ(engine->info().context_length, 992);
}

TEST(Engine, InfoAndPlanSayWhatServes) {
  const auto engine = start_tiny(tiny_options());
  const EngineInfo& info = engine->info();
  EXPECT_EQ(info.architecture, "qwen3_5_moe");
  EXPECT_EQ(info.model_name, "mettle-tiny");
  EXPECT_EQ(info.vocab_size, 6144);
  EXPECT_EQ(info.eos_ids, (std::vector<int32_t>{6135, 6137}));
  EXPECT_THAT(info.plan, HasSubstr("weights 12.6 MiB (nvfp4 6.4 MiB"));
  EXPECT_THAT(info.plan, HasSubstr("nvfp4/nvfp4/bf16 bf16: cpu_gemv/"));
}

}  // namespace
}  // namespace mettle
