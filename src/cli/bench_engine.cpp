#include "cli/bench_engine.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>

#include "base/error.h"

namespace mettle {

std::vector<int32_t> random_ids(int count, int vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<unsigned>(vocab));
  return ids;
}

EngineTimes time_together(Engine& engine, const std::vector<std::vector<int32_t>>& prompts, int new_tokens) {
  using Clock = std::chrono::steady_clock;
  std::mutex mutex;
  std::condition_variable done;
  size_t first = 0, ended = 0;
  int64_t tokens = 0, tokens_at_first = 0;
  std::string early;
  Clock::time_point all_first, end;
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = new_tokens;
  params.ignore_eos = true;
  const auto start = Clock::now();
  std::vector<bool> begun(prompts.size());
  for (size_t p = 0; p < prompts.size(); ++p)
    engine.submit(prompts[p], params, [&, p](const TokenEvent& e) {
      const std::lock_guard lock(mutex);
      if (e.token >= 0) {
        ++tokens;
        if (!begun[p] && ++first == prompts.size()) {
          all_first = Clock::now();
          tokens_at_first = tokens;
        }
        begun[p] = true;
      }
      if (e.finish == Finish::kNone) return;
      if (e.finish != Finish::kLength) early = e.error.empty() ? "stopped" : e.error;
      end = Clock::now();
      if (++ended == prompts.size()) done.notify_all();
    });
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return ended == prompts.size(); });
  if (!early.empty())
    fail(Code::kDevice, "a request of the measurement: must run to its length, ended early: " + early);
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  return {seconds(all_first - start), seconds(end - all_first), tokens - tokens_at_first};
}

}  // namespace mettle
