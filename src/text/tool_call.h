// One tool call of a reply, between its tags.
#pragma once
#include <string>
#include <string_view>

#include "text/reply_parser.h"

namespace mettle {

// `body` is what stands between <tool_call> and </tool_call>. False when it is malformed. tools_json: the request's
// tools; empty for none.
bool parse_xml_call(std::string_view body, const std::string& tools_json, ToolCall& call);
bool parse_json_call(std::string_view body, ToolCall& call);

}  // namespace mettle
