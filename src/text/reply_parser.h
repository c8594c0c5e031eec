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
// when it starts there; without a </think> all of it is. The two newlines after </think> belong to neither side.
// Tool calls: the XML form (<tool_call>\n<function=NAME>\n<parameter=P>\nVALUE\n</parameter>...) and the JSON form
// (<tool_call>\n{"name":...,"arguments":...}\n</tool_call>). Malformed calls are given back as content.
class ReplyParser {
 public:
  explicit ReplyParser(ReplyParserOptions options);
  ReplyDelta push(std::string_view text);
  ReplyDelta finish();

 private:
  ReplyParserOptions options_;
  bool in_reasoning_;
  bool in_call_ = false;
  bool at_start_ = false;  // swallow white space right after </think>
  std::string held_;
};

}  // namespace mettle
