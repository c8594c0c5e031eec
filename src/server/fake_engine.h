// An engine for tests: plays back token ids instead of computing them, with the contract of the real one. Only tests
// include it.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"

namespace mettle {

// What the engine plays for a prompt. Without an end it repeats its last token until max_tokens or a cancel.
struct FakeReply {
  std::vector<int32_t> tokens;
  int32_t stop_token = -1;  // -1: no end
  std::string error;        // not empty: fails after the tokens
};

class FakeEngine final : public Engine {
 public:
  using Script = std::function<FakeReply(const std::vector<int32_t>& prompt, const SamplingParams& params)>;

  FakeEngine(int vocab_size, int context_length, Script script) : script_(std::move(script)) {
    info_.model_name = "fake";
    info_.architecture = "fake";
    info_.vocab_size = vocab_size;
    info_.context_length = context_length;
    thread_ = std::thread([this] { loop(); });
  }
  ~FakeEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  const EngineInfo& info() const override { return info_; }
  EngineInfo& editable_info() { return info_; }

  uint64_t submit(std::vector<int32_t> prompt, const SamplingParams& params, OnToken on_token) override {
    const std::lock_guard lock(mutex_);
    if (draining_ || static_cast<int64_t>(active_.size()) >= max_sequences)
      fail(Code::kBusy, "engine: no place for another request");
    if (prompt.empty()) fail(Code::kInvalidRequest, "prompt: must have at least one token", "prompt");
    const uint64_t id = ++last_id_;
    FakeReply reply = script_(prompt, params);
    submitted_.emplace_back(prompt, params);
    active_[id] = {std::move(reply), params, std::move(on_token), 0, false};
    ++stats_.requests_accepted;
    stats_.prompt_tokens += prompt.size();
    changed_.notify_all();
    return id;
  }
  void cancel(uint64_t id) override {
    const std::lock_guard lock(mutex_);
    if (const auto it = active_.find(id); it != active_.end()) it->second.cancelled = true;
    changed_.notify_all();
  }
  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.running = static_cast<int64_t>(active_.size());
    stats.blocks_used = stats.running;
    stats.blocks_total = 100;
    return stats;
  }
  ServingPlan serving() const override {
    const std::lock_guard lock(mutex_);
    return serving_;
  }
  void drain(double) override {
    std::unique_lock lock(mutex_);
    draining_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return active_.empty(); });
  }

  // Tests steer with these.
  int64_t max_sequences = 1 << 20;
  void hold() {  // nothing is played until release()
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  void serve_with(ServingPlan serving) {
    const std::lock_guard lock(mutex_);
    serving_ = std::move(serving);
  }
  void break_down(std::string why) {
    const std::lock_guard lock(mutex_);
    stats_.healthy = false;
    stats_.unhealthy_why = std::move(why);
  }
  std::vector<std::pair<std::vector<int32_t>, SamplingParams>> submitted() const {
    const std::lock_guard lock(mutex_);
    return submitted_;
  }
  // Returns when nothing runs any more.
  void wait_idle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return active_.empty(); });
  }
  // Returns when `count` requests have been taken in since the start.
  void wait_accepted(uint64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stats_.requests_accepted >= count; });
  }

 private:
  // A step takes some time, as a real one does: nobody can read as fast as this loop could play.
  static constexpr std::chrono::microseconds kStep{100};

  struct Sequence {
    FakeReply reply;
    SamplingParams params;
    OnToken on_token;
    int played = 0;
    bool cancelled = false;
  };

  TokenEvent next_event(Sequence& s) {
    TokenEvent event;
    if (s.cancelled) {
      event.finish = Finish::kCancelled;
      return event;
    }
    const int scripted = static_cast<int>(s.reply.tokens.size());
    const bool ends = s.reply.stop_token >= 0 || !s.reply.error.empty();
    if (s.played >= scripted && ends) {
      event.finish = s.reply.error.empty() ? Finish::kStop : Finish::kError;
      event.stop_token = s.reply.error.empty() ? s.reply.stop_token : -1;
      event.error = s.reply.error;
      return event;
    }
    event.token = s.reply.tokens[static_cast<size_t>(std::min(s.played, scripted - 1))];
    event.logprob = -0.25f * static_cast<float>(s.played + 1);
    for (int i = 0; i < s.params.top_logprobs; ++i)
      event.top.emplace_back(event.token + i, event.logprob - static_cast<float>(i));
    if (++s.played >= s.params.max_tokens) event.finish = Finish::kLength;
    return event;
  }

  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || can_play(); });
      if (stop_) return;
      for (auto it = active_.begin(); it != active_.end();) {
        if (held_ && !it->second.cancelled) {
          ++it;
          continue;
        }
        const TokenEvent event = next_event(it->second);
        if (event.token >= 0) ++stats_.generated_tokens;
        const OnToken on_token = it->second.on_token;
        if (event.finish != Finish::kNone) {
          (event.finish == Finish::kCancelled ? stats_.requests_cancelled
           : event.finish == Finish::kError   ? stats_.requests_failed
                                              : stats_.requests_finished)++;
          it = active_.erase(it);
        } else {
          ++it;
        }
        // Like the real engine it holds no lock while it calls back; the map may grow meanwhile, which is harmless.
        lock.unlock();
        on_token(event);
        lock.lock();
      }
      ++stats_.steps;
      changed_.notify_all();
      changed_.wait_for(lock, kStep, [&] { return stop_; });
    }
  }
  bool can_play() const {
    return std::any_of(active_.begin(), active_.end(), [&](const auto& s) { return !held_ || s.second.cancelled; });
  }

  Script script_;
  EngineInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Sequence> active_;
  std::vector<std::pair<std::vector<int32_t>, SamplingParams>> submitted_;
  EngineStats stats_;
  ServingPlan serving_;
  uint64_t last_id_ = 0;
  bool stop_ = false, held_ = false, draining_ = false;
  std::thread thread_;
};

}  // namespace mettle
