// Answers of the two generation endpoints: whole bodies and event-stream chunks, as OpenAI clients read them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "server/generation.h"
#include "text/tokenizer.h"

namespace mettle {

struct ReplyOptions {
  std::string model;
  int choices = 1;
  int top_logprobs = -1;  // -1: no log probabilities
  bool include_usage = false;
  bool parallel_tool_calls = true;  // false: only the first call is given out
  const Tokenizer* tokenizer = nullptr;
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
};

// Either chunk() is called for every delta, or add() for every delta and then body(). A stream's chunks, put together,
// are the body.
class Reply {
 public:
  virtual ~Reply() = default;
  virtual std::string chunk(const ChoiceDelta& delta) = 0;  // zero or more "data: {...}\n\n"
  virtual std::string last_chunk(const Usage& usage) = 0;   // usage where it is wanted, then [DONE]
  virtual void add(ChoiceDelta&& delta) = 0;
  virtual std::string body(const Usage& usage) = 0;
};

std::unique_ptr<Reply> chat_reply(ReplyOptions options);
std::unique_ptr<Reply> text_reply(ReplyOptions options);

}  // namespace mettle
