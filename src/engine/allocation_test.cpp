// After ready nothing is allocated on the serving path: while requests are admitted, prefilled, decoded, preempted and
// ended, every operator new of every thread but the test's own is counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "engine/test_support.h"
#include "tensor/buffer.h"

namespace {

std::atomic<bool> g_counting{false};
std::atomic<int> g_allocations{0};
thread_local bool t_exempt = false;  // the test's own thread: callers may allocate

void* allocate(size_t bytes, size_t alignment) {
  if (g_counting.load(std::memory_order_relaxed) && !t_exempt) ++g_allocations;
  const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* memory = alignment > alignof(std::max_align_t) ? std::aligned_alloc(alignment, rounded) : std::malloc(rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The array and nothrow forms come down to these.
void* operator new(size_t bytes) { return allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) { return allocate(bytes, static_cast<size_t>(alignment)); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace mettle {
namespace {

using namespace mettle::testing;

// Hears of tokens without allocating.
class Ends {
 public:
  OnToken listener() {
    return [this](const TokenEvent& event) {
      if (event.finish == Finish::kNone) return;
      if (event.finish == Finish::kError) ++errors_;
      ++ends_;
      ends_.notify_all();
    };
  }
  void wait(int count) {
    for (int n = ends_; n < count; n = ends_) ends_.wait(n);
    EXPECT_EQ(errors_, 0);
  }

 private:
  std::atomic<int> ends_{0}, errors_{0};
};

std::vector<SamplingParams> every_kind() {
  std::vector<SamplingParams> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(greedy(24));  // over a border of the cache's blocks
    all.back().ignore_eos = true;
    all.back().seed = 11;
  }
  all[1].temperature = 1;
  all[2].temperature = 0.8, all[2].top_k = 40, all[2].top_p = 0.9, all[2].min_p = 0.01;
  all[3].repetition = 1.3, all[3].presence = 0.5, all[3].frequency = 0.25;
  all[4].top_logprobs = 20;
  all[5].logit_bias = {{17, 2.f}, {90, -100.f}}, all[5].stop_ids = {5}, all[5].min_tokens = 24;
  return all;
}

// warm_tokens: the first run is one short request of that many tokens, instead of every kind.
EngineStats expect_no_allocations(EngineOptions options, const std::string& backend, Probe probe = {},
                                  int warm_tokens = 0) {
  options.cache_bytes = 64 << 20;
  options.step_tokens = 24;  // the prompts come in chunks
  probe.choices = std::make_shared<UnprovedChoices>(backend);
  const auto engine = start_probed(options, probe);
  const auto run = [&] {
    Ends ends;
    int count = 0;
    for (const SamplingParams& params : every_kind())
      engine->submit(std::vector<int32_t>(static_cast<size_t>(5 + 11 * count++), 300), params, ends.listener());
    ends.wait(count);
  };
  // First use of threads, locks and what the C library makes on first use.
  if (warm_tokens > 0) {
    Ends ends;
    SamplingParams params = greedy(warm_tokens);
    params.ignore_eos = true;
    engine->submit({300, 301}, params, ends.listener());
    ends.wait(1);
  } else {
    run();
  }
  t_exempt = true;
  g_allocations = 0;
  const size_t buffers = buffer_bytes_in_use();
  g_counting = true;
  run();
  g_counting = false;
  t_exempt = false;
  EXPECT_EQ(g_allocations, 0) << backend << ", " << name_of(options.activation) << ", " << options.tp_size << " ranks";
  EXPECT_EQ(buffer_bytes_in_use(), buffers);
  return engine->stats();
}

TEST(Allocations, TheCounterCounts) {
  g_allocations = 0;
  g_counting = true;
  delete new int;
  std::vector<double>(100).swap(*std::make_unique<std::vector<double>>());
  g_counting = false;
  EXPECT_EQ(g_allocations, 3);
}

TEST(Allocations, NoneAfterReady) {
  for (const Activation activation : {Activation::kBf16, Activation::kF32})
    for (const char* backend : {"cpu", "cpu_gemv", "cpu_gemm", "reference"}) {
      EngineOptions options = tiny_options();
      options.activation = activation;
      expect_no_allocations(options, backend);
    }
}

TEST(Allocations, NoneWithSeveralThreadsAndRanks) {
  EngineOptions options = tiny_options();
  options.threads = 2;
  expect_no_allocations(options, "cpu_gemm");
  options.tp_size = 2;
  expect_no_allocations(options, "cpu_gemv");
}

TEST(Allocations, NoneWhileStepsRunAhead) {
  Probe probe;
  probe.watch_every = 1000;
  probe.ahead = std::make_shared<std::atomic<uint64_t>>(0);
  EngineOptions options = tiny_options();
  options.max_running = 3;  // with a penalty none runs ahead; the last ones have none
  expect_no_allocations(options, "cpu_gemv", probe);
  EXPECT_GT(*probe.ahead, 0u);
}

// A step that ran ahead swaps its ids with the next step's, so either list may be the one that a long prompt fills:
// after an odd number of them the list of a decode step's length lay there, and grew.
TEST(Allocations, NoneForALongPromptAfterStepsAhead) {
  for (const int warm_tokens : {8, 9}) {
    Probe probe;
    probe.watch_every = 1000;
    probe.ahead = std::make_shared<std::atomic<uint64_t>>(0);
    EngineOptions options = tiny_options();
    options.max_running = 3;
    expect_no_allocations(options, "cpu_gemv", probe, warm_tokens);
    EXPECT_GT(*probe.ahead, 0u);
  }
}

TEST(Allocations, NoneWhilePreempted) {
  EngineOptions options = tiny_options();
  options.context_length = 128;
  options.cache_tokens = 128;
  EXPECT_GT(expect_no_allocations(options, "cpu_gemv").preemptions, 0u);
}

}  // namespace
}  // namespace mettle
