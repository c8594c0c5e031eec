// Splits generated text, as it comes, into reasoning, content and tool calls.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON object text
};

struct ReplyDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;  // complete ones
};

struct ReplyParserOptions {
  bool starts_in_reasoning = false;  // the rendered prompt ends inside <think>
  bool parse_tool_calls = false;     // the request carries tools
  std::string tools_json;            // the request's tools array; its schemas turn raw parameter text into JSON values
};

// True when a rendered prompt leaves the model inside an open <think> block.
bool prompt_opens_reasoning(std::string_view prompt);

// Tags cut by chunk borders are held back until they are decided. Everything up to the first </think> is reasoning
// when it starts there; without a </think> all of it is. A reply that begins with <think> starts there too. The two
// newlines after </think> belong to neither side.
// Tool calls: the XML form (<tool_call>\n<function=NAME>\n<parameter=P>\nVALUE\n</parameter>...) and the JSON form
// (<tool_call>\n{"name":...,"arguments":...}\n</tool_call>). White space around a call belongs to it. Malformed calls
// are given back as content.
class ReplyParser {
 public:
  explicit ReplyParser(ReplyParserOptions options);
  ReplyDelta push(std::string_view text);
  ReplyDelta finish();

 private:
  enum class Part { kStart, kReasoning, kContent, kCall };
  enum class Verdict { kWait, kCall, kMalformed };

  void run(ReplyDelta& out, bool last);
  bool advance(ReplyDelta& out, bool last);
  bool content(ReplyDelta& out, bool last);
  bool call(ReplyDelta& out, bool last);
  Verdict judge(ToolCall& call);

  ReplyParserOptions options_;
  Part part_;
  std::string held_;       // received, not yet given on
  size_t at_ = 0;          // in held_: the first byte that still counts
  int skip_newlines_ = 0;  // so many are left of those behind a tag
  bool after_call_ = false;
  size_t body_ = 0;         // in held_: behind the opening tag of the call
  size_t searched_ = 0;     // in held_: up to here no end of the call
  bool in_string_ = false;  // of a JSON call, at searched_
};

}  // namespace mettle
