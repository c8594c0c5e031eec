// Bodies of /v1/chat/completions and /v1/completions, checked field by field. Every number has a closed range, every
// list a length; what is outside is an Error with `param`, and nothing of it reaches the engine.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "checkpoint/model_folder.h"
#include "engine/engine.h"

namespace mettle {

struct RequestContext {
  int vocab_size = 0;
  int context_length = 0;
  SamplingDefaults defaults;  // of the model; a field that the request has wins
};

struct GenerationFields {  // shared by both bodies
  std::string model;       // empty: not given
  SamplingParams sampling;
  bool max_tokens_given = false;  // otherwise: the rest of the context
  std::vector<std::string> stop;
  int n = 1;
  bool stream = false;
  bool include_usage = false;
  bool skip_special_tokens = true;
  std::vector<std::string> ignored;  // fields that mean nothing here
};

struct ChatRequest : GenerationFields {
  // Normalised for templates: content is a string or null, arguments of past tool calls are objects.
  nlohmann::ordered_json messages;
  nlohmann::ordered_json tools;            // array; null when none may be called
  nlohmann::ordered_json template_kwargs;  // object
  bool parallel_tool_calls = true;
};

struct TextRequest : GenerationFields {
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;
};

ChatRequest parse_chat_request(std::string_view body, const RequestContext& context);
TextRequest parse_text_request(std::string_view body, const RequestContext& context);

// Roles, parts and tool calls of `messages`, brought into the form templates take. Fails naming the message.
nlohmann::ordered_json normalise_messages(const nlohmann::ordered_json& messages);

}  // namespace mettle
