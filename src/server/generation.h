// All sequences of one API request: submitted together, taken as deltas on the caller's thread, cancelled together.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/completion.h"
#include "server/metrics.h"

namespace mettle {

struct GenerationRequest {
  std::vector<std::vector<int32_t>> prompts;
  int n = 1;                     // sequences for each prompt
  SamplingParams sampling;       // a seed is taken for the first sequence and derived for the others
  bool max_tokens_given = true;  // otherwise each prompt gets the rest of the context
  CompletionOptions completion;
};

struct ChoiceDelta {
  int choice = 0;  // prompt * n + sequence
  CompletionDelta delta;
};

class Generation {
 public:
  // Fails as Engine::submit does; nothing runs then. `wake` is called on the engine's thread when take() has something
  // new, at most once between two calls of take(). metrics may be null. Engine and tokenizer must outlive this.
  Generation(Engine& engine, const Tokenizer& tokenizer, GenerationRequest request, std::function<void()> wake,
             std::shared_ptr<Metrics> metrics);
  ~Generation();  // cancel()
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  std::vector<ChoiceDelta> take();
  void cancel();
  bool done() const { return open_ == 0; }  // every choice had its final delta

  int choices() const { return static_cast<int>(completions_.size()); }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t completion_tokens() const;

 private:
  struct Inbox;
  Engine& engine_;
  std::shared_ptr<Inbox> inbox_;
  std::vector<Completion> completions_;
  std::vector<uint64_t> ids_;
  int64_t prompt_tokens_ = 0;
  int open_ = 0;
};

// Runs a generation of one sequence to its end on this thread. on_delta may be empty; returning false from it cancels.
// While nothing comes it is called with an empty delta several times a second.
struct CompletionResult {
  std::string reasoning, content;
  std::vector<ToolCall> tool_calls;
  std::vector<TokenLogprob> logprobs;
  Finish finish = Finish::kNone;
  std::string error;
  int64_t prompt_tokens = 0, completion_tokens = 0;
};
CompletionResult complete(Engine& engine, const Tokenizer& tokenizer, GenerationRequest request,
                          const std::function<bool(const CompletionDelta&)>& on_delta = {});

}  // namespace mettle
