#include "server/text_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "server/untrusted_text.h"
#include "text/reply_parser.h"

namespace mettle {
namespace {

Tokenizer tokenizer_of(const ModelFolder& folder) {
  if (folder.tokenizer_path.empty())
    fail(Code::kBadModel, fmt::format("{}: has no tokenizer.json, which serving text needs", folder.path));
  return Tokenizer::from_file(folder.tokenizer_path);
}

enum class Count { kExact, kAtLeast };

void check_length(size_t tokens, Count count, int context, const std::string& param) {
  if (tokens == 0) fail(Code::kInvalidRequest, param + ": must have at least one token, got none", param);
  if (tokens + 1 > static_cast<size_t>(context))
    fail(Code::kInvalidRequest,
         fmt::format("{}: must leave room for one token in the context of {} tokens, got {}{} tokens", param, context,
                     count == Count::kAtLeast ? "at least " : "", tokens),
         param);
}

}  // namespace

TextModel::TextModel(const ModelFolder& folder)
    : TextModel(folder.name, tokenizer_of(folder), folder.chat_template, folder.sampling) {}

TextModel::TextModel(std::string name, Tokenizer tokenizer, const std::string& chat_template, SamplingDefaults sampling)
    : name_(std::move(name)), tokenizer_(std::move(tokenizer)), sampling_(sampling) {
  if (!chat_template.empty()) template_.emplace(chat_template);
  for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id)
    longest_token_ = std::max(longest_token_, tokenizer_.bytes_of(id).size());
}

ChatPrompt TextModel::chat(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                           const nlohmann::ordered_json& kwargs, int context) const {
  if (!template_)
    fail(Code::kInvalidRequest, fmt::format("model {} has no chat template; use /v1/completions", name_), "model");
  UntrustedText untrusted(tokenizer_);
  nlohmann::ordered_json variables = kwargs;
  untrusted.mark(variables);
  variables["messages"] = messages;
  for (auto& message : variables["messages"]) {
    const auto content = message.find("content");
    if (message["role"] == "assistant" && content != message.end() && content->is_string()) {
      std::string text = content->get<std::string>();
      untrusted.mark_reply(text);
      *content = nullptr;
      untrusted.mark(message);
      message["content"] = std::move(text);
    } else {
      untrusted.mark(message);
    }
  }
  if (!tools.is_null()) {
    variables["tools"] = tools;
    untrusted.mark(variables["tools"]);
  }
  variables["add_generation_prompt"] = true;

  std::string rendered;
  try {
    rendered = template_->render(variables);
  } catch (const Error& e) {
    if (e.code != Code::kInvalidRequest) throw;
    fail(Code::kInvalidRequest, "messages: the model's chat template refused them: " + e.message, "messages");
  }
  // Hopeless lengths are refused before they cost an encoding.
  check_length(rendered.size() / longest_token_ + 1, Count::kAtLeast, context, "messages");
  ChatPrompt prompt{.ids = untrusted.encode(rendered),
                    .opens_reasoning = prompt_opens_reasoning(UntrustedText::trusted(rendered))};
  check_length(prompt.ids.size(), Count::kExact, context, "messages");
  return prompt;
}

std::vector<int32_t> TextModel::encode(std::string_view text, int context, const std::string& param) const {
  check_length(text.empty() ? 0 : text.size() / longest_token_ + 1, Count::kAtLeast, context, param);
  std::vector<int32_t> ids = tokenizer_.encode(text, AddedTokens::kAsTokens);
  check_length(ids.size(), Count::kExact, context, param);
  return ids;
}

}  // namespace mettle
