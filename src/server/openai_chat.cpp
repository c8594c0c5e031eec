// The body of /v1/chat/completions.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "server/json_limits.h"
#include "server/openai_fields.h"

namespace mettle {
namespace {

constexpr size_t kMaxMessages = 8192, kMaxParts = 1024, kMaxTools = 256, kMaxCalls = 128;
constexpr int kMaxTopLogprobs = 20;
constexpr std::array kRoles = {"system", "developer", "user", "assistant", "tool"};

// Text of a content field: a string, null, or a list of text parts (joined).
Json content_of(const Json* content, const std::string& field) {
  if (content == nullptr) return nullptr;
  if (content->is_string()) return *content;
  if (!content->is_array()) refuse_field(field, "must be a string or a list of parts", *content);
  if (content->size() > kMaxParts) refuse_field(field, fmt::format("must have at most {} parts", kMaxParts), *content);
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const FieldReader part((*content)[i], fmt::format("{}[{}]", field, i));
    const std::string type = text_of(part.need("type"), part.path_of("type"));
    if (type != "text" && type != "input_text" && type != "output_text")
      refuse_field(part.path_of("type"), "only text parts are supported by this model", Json(type));
    text += text_of(part.need("text"), part.path_of("text"));
  }
  return text;
}

// A call the model made before: templates want its arguments as an object, clients send them as JSON text.
Json past_call(const Json& call, const std::string& field) {
  const FieldReader fields(call, field);
  const FieldReader function(fields.need("function"), fields.path_of("function"));
  const std::string name = text_of(function.need("name"), function.path_of("name"));
  if (name.empty() || name.size() > 256) refuse_field(function.path_of("name"), "must have 1..256 bytes", Json(name));
  Json arguments = Json::object();
  if (const Json* given = function.find("arguments")) {
    const std::string path = function.path_of("arguments");
    if (given->is_object()) {
      arguments = *given;
    } else if (const std::string& text = text_of(*given, path); !text.empty()) {
      try {
        arguments = parse_json(text);
      } catch (const Error& e) {
        refuse_field(path, "must be the text of a JSON object; " + e.message);
      }
      if (!arguments.is_object()) refuse_field(path, "must be the text of a JSON object", arguments);
    }
  }
  Json out = {{"id", fields.text("id").value_or("")}, {"type", "function"}};
  out["function"] = Json{{"name", name}, {"arguments", std::move(arguments)}};
  return out;
}

Json normalise_message(const Json& message, const std::string& field) {
  const FieldReader fields(message, field);
  std::string role = text_of(fields.need("role"), fields.path_of("role"));
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end())
    refuse_field(fields.path_of("role"), fmt::format("must be one of {}", fmt::join(kRoles, ", ")), Json(role));
  // Few templates know the newer name.
  if (role == "developer") role = "system";
  Json out = {{"role", role}};
  Json content = content_of(fields.find("content"), fields.path_of("content"));
  Json calls = Json::array();
  if (role == "assistant") {
    if (const Json* given = fields.array("tool_calls")) {
      if (given->size() > kMaxCalls)
        refuse_field(fields.path_of("tool_calls"), fmt::format("must have at most {} calls", kMaxCalls), *given);
      for (size_t i = 0; i < given->size(); ++i)
        calls.push_back(past_call((*given)[i], fmt::format("{}[{}]", fields.path_of("tool_calls"), i)));
    }
    auto reasoning = fields.text("reasoning_content");
    if (!reasoning) reasoning = fields.text("reasoning");
    if (reasoning) out["reasoning_content"] = *reasoning;
    if (content.is_null()) content = "";
  }
  if (content.is_null()) refuse_field(fields.path_of("content"), "is required");
  out["content"] = std::move(content);
  if (!calls.empty()) out["tool_calls"] = std::move(calls);
  if (role == "tool")
    if (const auto id = fields.text("tool_call_id")) out["tool_call_id"] = *id;
  if (const auto name = fields.text("name")) out["name"] = *name;
  return out;
}

bool is_function_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

void check_tools(const Json& tools) {
  if (tools.size() > kMaxTools) refuse_field("tools", fmt::format("must have at most {} tools", kMaxTools), tools);
  for (size_t i = 0; i < tools.size(); ++i) {
    const FieldReader tool(tools[i], fmt::format("tools[{}]", i));
    const std::string type = text_of(tool.need("type"), tool.path_of("type"));
    if (type != "function") refuse_field(tool.path_of("type"), "must be \"function\"", Json(type));
    const FieldReader function(tool.need("function"), tool.path_of("function"));
    const std::string name = text_of(function.need("name"), function.path_of("name"));
    if (!is_function_name(name))
      refuse_field(function.path_of("name"), "must have 1..64 of the characters a-z A-Z 0-9 _ - .", Json(name));
    function.text("description");
    function.object("parameters");
  }
}

void read_tools(const FieldReader& body, ChatRequest& out) {
  const Json* tools = body.array("tools");
  if (tools != nullptr) check_tools(*tools);
  const Json* choice = body.find("tool_choice");
  if (choice != nullptr) {
    if (choice->is_object() || (choice->is_string() && *choice == "required"))
      refuse_field("tool_choice", "only \"none\" and \"auto\" are supported by this server", *choice);
    if (*choice != "none" && *choice != "auto") refuse_field("tool_choice", "must be \"none\" or \"auto\"", *choice);
  }
  if (tools != nullptr && !tools->empty() && (choice == nullptr || *choice == "auto")) out.tools = *tools;
  out.parallel_tool_calls = body.boolean("parallel_tool_calls").value_or(true);
}

void read_template_kwargs(const FieldReader& body, ChatRequest& out) {
  out.template_kwargs = Json::object();
  if (const auto effort = body.text("reasoning_effort")) out.template_kwargs["reasoning_effort"] = *effort;
  const Json* kwargs = body.object("chat_template_kwargs");
  if (kwargs == nullptr) return;
  for (const auto& [key, value] : kwargs->items()) {
    if (key == "messages" || key == "tools" || key == "add_generation_prompt")
      refuse_field("chat_template_kwargs." + key, "is set by the server");
    out.template_kwargs[key] = value;
  }
}

void read_logprobs(const FieldReader& body, SamplingParams& sampling) {
  const bool wanted = body.boolean("logprobs").value_or(false);
  const auto top = body.integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && *top > 0 && !wanted) refuse_field("top_logprobs", "is allowed only with logprobs = true");
  if (wanted) sampling.top_logprobs = static_cast<int>(top.value_or(0));
}

}  // namespace

Json normalise_messages(const Json& messages) {
  if (!messages.is_array()) refuse_field("messages", "must be an array", messages);
  if (messages.empty()) refuse_field("messages", "must have at least one message, got none");
  if (messages.size() > kMaxMessages)
    refuse_field("messages", fmt::format("must have at most {} messages", kMaxMessages), messages);
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i)
    out.push_back(normalise_message(messages[i], fmt::format("messages[{}]", i)));
  return out;
}

ChatRequest parse_chat_request(std::string_view body, const RequestContext& context) {
  static constexpr std::string_view kOwn[] = {
      "messages",  "tools",        "tool_choice",          "parallel_tool_calls",
      "logprobs",  "top_logprobs", "chat_template_kwargs", "reasoning_effort",
      "modalities"};
  const Json json = parse_json(body);
  const FieldReader fields(json, "");
  ChatRequest out;
  read_generation_fields(fields, context, kOwn, out);
  if (const Json* modalities = fields.array("modalities");
      modalities != nullptr && *modalities != Json::array({"text"}))
    refuse_field("modalities", "only [\"text\"] is supported by this model", *modalities);
  out.messages = normalise_messages(fields.need("messages"));
  read_tools(fields, out);
  read_template_kwargs(fields, out);
  read_logprobs(fields, out.sampling);
  return out;
}

}  // namespace mettle
