// Token events of one sequence become text: characters put together, stop strings cut exactly, reasoning and tool
// calls split off, log probabilities kept beside the text they belong to. Pure: no engine, no threads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "text/reply_parser.h"
#include "text/tokenizer.h"

namespace mettle {

struct CompletionOptions {
  std::vector<std::string> stop;
  int min_tokens = 0;  // stop strings are not looked for in the text of that many first tokens
  bool skip_special = true;
  bool logprobs = false;
  std::optional<ReplyParserOptions> reply;  // a chat; absent: all text is content
};

struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;
  size_t text_offset = 0;  // bytes of the reply before it, counted over the whole generated text
};

struct CompletionDelta {
  ReplyDelta reply;
  std::vector<TokenLogprob> logprobs;
  Finish finish = Finish::kNone;  // other than kNone: nothing follows
  std::string error;              // kError
  bool empty() const {
    return reply.reasoning.empty() && reply.content.empty() && reply.tool_calls.empty() && logprobs.empty() &&
           finish == Finish::kNone;
  }
};

class Completion {
 public:
  Completion(const Tokenizer& tokenizer, CompletionOptions options);

  // Text that may become a stop string, half a character or a tag waits for the next call. After a delta with finish
  // set, further events are ignored.
  CompletionDelta push(const TokenEvent& event);

  bool finished() const { return finished_; }
  bool stopped_by_text() const { return stopped_by_text_; }  // the engine does not know yet: cancel there
  int tokens() const { return tokens_; }                     // sampled so far, a stop token included

 private:
  void take_text(std::string_view text, CompletionDelta& delta);
  void emit(size_t bytes, CompletionDelta& delta);
  void finish(Finish why, CompletionDelta& delta);

  CompletionOptions options_;
  Detokenizer detokenizer_;
  std::optional<ReplyParser> parser_;
  std::string held_;    // text not given out yet
  size_t emitted_ = 0;  // bytes given out
  std::vector<TokenLogprob> held_logprobs_;
  int tokens_ = 0;
  bool finished_ = false, stopped_by_text_ = false;
};

}  // namespace mettle
