// For tests: engines whose choices are not proved, and requests that are waited for.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/probe.h"

namespace mettle::testing {

// One backend by name for every op that has it ("first": the first that supports the problem), `reference` for the
// others; its last tactic, on a CPU the widest.
class UnprovedChoices : public ChoiceSource {
 public:
  explicit UnprovedChoices(std::string name = "reference", Device device = this_cpu())
      : name_(std::move(name)), device_(std::move(device)) {}
  Choices<EmbedOp> choose(const EmbedProblem& p) override { return pick<EmbedOp>(p); }
  Choices<JoinOp> choose(const JoinProblem& p) override { return pick<JoinOp>(p); }
  Choices<LinearOp> choose(const LinearProblem& p) override { return pick<LinearOp>(p); }
  Choices<MoeOp> choose(const MoeProblem& p) override { return pick<MoeOp>(p); }
  Choices<AttentionOp> choose(const AttentionProblem& p) override { return pick<AttentionOp>(p); }
  Choices<GdnOp> choose(const GdnProblem& p) override { return pick<GdnOp>(p); }
  Choices<SampleOp> choose(const SampleProblem& p) override { return pick<SampleOp>(p); }

 private:
  template <class Op>
  Choices<Op> pick(const typename Op::Problem& problem) const {
    Choice<Op> choice;
    bool found = false;
    for (const Backend<Op>* backend : backends_of<Op>()) {
      if (found || backend->kind != device_.kind || !backend->supports(problem, device_).ok()) continue;
      found = backend->name == name_ || name_ == "first";
      if (found || backend->name == "reference") choice = {backend, backend->tactics(problem, device_).back()};
    }
    CHECK(choice.backend != nullptr, problem.text());
    Choices<Op> choices;
    choices.by_bucket.fill(choice);
    return choices;
  }
  std::string name_;
  Device device_;
};

inline std::shared_ptr<ChoiceSource> unproved_reference_choices() { return std::make_shared<UnprovedChoices>(); }

inline EngineOptions tiny_options() {
  EngineOptions options;
  options.model_path = METTLE_SOURCE_DIR "/models/mettle-tiny";
  options.device = "cpu";
  options.threads = 1;  // tests run beside each other
  return options;
}

// What became of one request.
class Reply {
 public:
  OnToken listener() {
    return [this](const TokenEvent& event) {
      const std::lock_guard lock(mutex_);
      if (last_.finish != Finish::kNone) ++after_final_;
      if (event.token >= 0) {
        tokens_.push_back(event.token);
        events_.push_back(event);
      }
      if (event.finish != Finish::kNone) {
        last_ = event;
        ++finals_;
      }
      changed_.notify_all();
    };
  }
  // Waits for the final event.
  const TokenEvent& wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finals_ > 0; });
    return last_;
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finals_ > 0 || tokens_.size() >= count; });
  }
  std::vector<int32_t> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  std::vector<TokenEvent> events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  int finals() {
    const std::lock_guard lock(mutex_);
    return finals_;
  }
  int after_final() {
    const std::lock_guard lock(mutex_);
    return after_final_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  std::vector<TokenEvent> events_;
  TokenEvent last_;
  int finals_ = 0, after_final_ = 0;
};

inline SamplingParams greedy(int max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  return params;
}

}  // namespace mettle::testing
