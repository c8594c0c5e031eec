#include "server/generation.h"

#include <condition_variable>
#include <mutex>
#include <random>

#include "base/error.h"

namespace mettle {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTick{50};

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// The seed of sequence `index`: the request's own for the first, unrelated ones (SplitMix64) for the others.
uint64_t derived_seed(uint64_t seed, uint64_t index) {
  if (index == 0) return seed;
  uint64_t z = seed + index * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace

// What the engine's thread writes. It lives until the last final event, however long the request itself lives.
struct Generation::Inbox {
  struct Times {
    Clock::time_point start, last;
  };
  void put(int choice, const TokenEvent& event) {
    if (metrics != nullptr) measure(choice, event);
    bool first = false;
    {
      const std::lock_guard lock(mutex);
      if (closed) return;
      first = events.empty();
      events.emplace_back(choice, event);
    }
    if (first) wake();
  }
  void measure(int choice, const TokenEvent& event) {
    Times& t = times[static_cast<size_t>(choice)];
    const auto now = Clock::now();
    if (event.token >= 0) {
      if (t.last == Clock::time_point{})
        metrics->time_to_first_token.observe(seconds(now - t.start));
      else
        metrics->inter_token_latency.observe(seconds(now - t.last));
      t.last = now;
    }
    if (event.finish != Finish::kNone) metrics->request_duration.observe(seconds(now - t.start));
  }

  std::function<void()> wake;
  std::shared_ptr<Metrics> metrics;
  std::vector<Times> times;  // one per choice, each written by the engine's thread alone
  std::mutex mutex;
  std::vector<std::pair<int, TokenEvent>> events;
  bool closed = false;
};

Generation::Generation(Engine& engine, const Tokenizer& tokenizer, GenerationRequest request,
                       std::function<void()> wake, std::shared_ptr<Metrics> metrics)
    : engine_(engine), inbox_(std::make_shared<Inbox>()) {
  const size_t n = static_cast<size_t>(request.n);
  const size_t choices = request.prompts.size() * n;
  inbox_->wake = std::move(wake);
  inbox_->metrics = std::move(metrics);
  inbox_->times.resize(choices);
  completions_.reserve(choices);
  try {
    for (size_t i = 0; i < choices; ++i) {
      const std::vector<int32_t>& prompt = request.prompts[i / n];
      SamplingParams sampling = request.sampling;
      if (sampling.seed) sampling.seed = derived_seed(*sampling.seed, i);
      if (!request.max_tokens_given)
        sampling.max_tokens = std::max(1, engine.info().context_length - static_cast<int>(prompt.size()));
      if (i % n == 0) prompt_tokens_ += static_cast<int64_t>(prompt.size());
      completions_.emplace_back(tokenizer, request.completion);
      inbox_->times[i].start = Clock::now();
      ids_.push_back(engine.submit(
          prompt, sampling,
          [inbox = inbox_, choice = static_cast<int>(i)](const TokenEvent& event) { inbox->put(choice, event); }));
      ++open_;
    }
  } catch (...) {
    cancel();
    throw;
  }
}

Generation::~Generation() { cancel(); }

void Generation::cancel() {
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->closed = true;
    inbox_->events.clear();
  }
  for (size_t i = 0; i < ids_.size(); ++i)
    if (!completions_[i].finished()) engine_.cancel(ids_[i]);
  open_ = 0;
}

std::vector<ChoiceDelta> Generation::take() {
  std::vector<std::pair<int, TokenEvent>> events;
  {
    const std::lock_guard lock(inbox_->mutex);
    events.swap(inbox_->events);
  }
  std::vector<ChoiceDelta> deltas;
  for (const auto& [choice, event] : events) {
    Completion& completion = completions_[static_cast<size_t>(choice)];
    if (completion.finished()) continue;
    CompletionDelta delta = completion.push(event);
    if (completion.finished()) {
      --open_;
      if (completion.stopped_by_text()) engine_.cancel(ids_[static_cast<size_t>(choice)]);
    }
    if (!delta.empty()) deltas.push_back({choice, std::move(delta)});
  }
  return deltas;
}

int64_t Generation::completion_tokens() const {
  int64_t tokens = 0;
  for (const Completion& c : completions_) tokens += c.tokens();
  return tokens;
}

CompletionResult complete(Engine& engine, const Tokenizer& tokenizer, GenerationRequest request,
                          const std::function<bool(const CompletionDelta&)>& on_delta) {
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
    bool set = false;
  };
  // Shared with the engine's thread, which may still be inside wake() when the last event has been taken.
  const auto signal = std::make_shared<Signal>();
  CHECK(request.prompts.size() == 1 && request.n == 1, "complete() runs one sequence");
  Generation generation(
      engine, tokenizer, std::move(request),
      [signal] {
        const std::lock_guard lock(signal->mutex);
        signal->set = true;
        signal->changed.notify_one();
      },
      nullptr);
  CompletionResult result{.prompt_tokens = generation.prompt_tokens()};
  while (!generation.done()) {
    {
      std::unique_lock lock(signal->mutex);
      signal->changed.wait_for(lock, kTick, [&] { return signal->set; });
      signal->set = false;
    }
    std::vector<ChoiceDelta> deltas = generation.take();
    if (deltas.empty()) deltas.emplace_back();
    for (ChoiceDelta& d : deltas) {
      CompletionDelta& delta = d.delta;
      const bool go_on = !on_delta || on_delta(delta);
      result.reasoning += delta.reply.reasoning;
      result.content += delta.reply.content;
      std::move(delta.reply.tool_calls.begin(), delta.reply.tool_calls.end(), std::back_inserter(result.tool_calls));
      std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(result.logprobs));
      result.finish = delta.finish;
      result.error = delta.error;
      if (!go_on && !generation.done()) {
        result.finish = Finish::kCancelled;
        generation.cancel();
        break;
      }
    }
  }
  result.completion_tokens = generation.completion_tokens();
  return result;
}

}  // namespace mettle
