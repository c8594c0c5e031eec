// For tests: engines whose choices are not proved, and requests that are waited for.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/probe.h"
#include "engine/runner.h"
#include "models/block.h"

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

// Of the last row of a prompt of five tokens, by loaded ranks.
inline std::vector<float> logits_of_a_prompt(std::vector<std::unique_ptr<Model>> ranks,
                                             std::vector<std::unique_ptr<Place>> places) {
  const int vocab = ranks.front()->info().vocab;
  Runner runner(std::move(ranks), std::move(places), 2);
  runner.ready({.rows = 5, .logit_rows = 1, .blocks = 1, .slots = 1, .context = 16});
  const std::vector<int32_t> ids = {3, 1, 4, 1, 5}, last = {4}, blocks = {0};
  const std::vector<BatchSequence> sequences = {{.q_len = 5, .block_table = blocks.data(), .state_out = 0}};
  runner.run({.batch = {.rows = 5, .sequences = sequences},
              .ids = ids.data(),
              .logit_rows = last,
              .logits = view_of(runner.logits().data, DType::kF32, {1, vocab})});
  const auto* logits = runner.logits().as<float>();
  return {logits, logits + vocab};
}

inline EngineOptions tiny_options() {
  EngineOptions options;
  options.model_path = METTLE_SOURCE_DIR "/models/mettle-tiny";
  options.device = "cpu";
  options.threads = 1;  // tests run beside each other
  return options;
}

// What became of one request. What the listener heard outlives the reply: a test that fails early leaves an engine that
// still tells.
class Reply {
 public:
  OnToken listener() {
    return [heard = heard_](const TokenEvent& event) {
      const std::lock_guard lock(heard->mutex);
      if (heard->last.finish != Finish::kNone) ++heard->after_final;
      if (event.token >= 0) {
        heard->tokens.push_back(event.token);
        heard->events.push_back(event);
      }
      if (event.finish != Finish::kNone) {
        heard->last = event;
        ++heard->finals;
      }
      heard->changed.notify_all();
    };
  }
  // Waits for the final event.
  const TokenEvent& wait() {
    std::unique_lock lock(heard_->mutex);
    heard_->changed.wait(lock, [&] { return heard_->finals > 0; });
    return heard_->last;
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(heard_->mutex);
    heard_->changed.wait(lock, [&] { return heard_->finals > 0 || heard_->tokens.size() >= count; });
  }
  std::vector<int32_t> tokens() { return read(&Heard::tokens); }
  std::vector<TokenEvent> events() { return read(&Heard::events); }
  int finals() { return read(&Heard::finals); }
  int after_final() { return read(&Heard::after_final); }

 private:
  struct Heard {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<int32_t> tokens;
    std::vector<TokenEvent> events;
    TokenEvent last;
    int finals = 0, after_final = 0;
  };
  template <class T>
  T read(T Heard::*what) {
    const std::lock_guard lock(heard_->mutex);
    return (*heard_).*what;
  }
  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
};

inline SamplingParams greedy(int max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  return params;
}

}  // namespace mettle::testing
