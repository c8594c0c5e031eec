// What the server knows of a model besides its weights: tokenizer, chat template, names, sampling defaults.
// Turns chats and texts into token ids.
//
// Untrusted text never becomes control tokens. A rendered template is encoded with its added tokens (<|im_start|>, ...)
// recognised; text from the messages and tools that contains the spelling of such a token is rendered between two marks
// that occur nowhere else, cut out of the rendered prompt by them, and encoded as plain text. Requests without such
// text, nearly all, are encoded as one piece, exactly as transformers does it.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_folder.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace mettle {

struct ChatPrompt {
  std::vector<int32_t> ids;
  bool opens_reasoning = false;  // the reply starts inside <think>
};

class TextModel {
 public:
  // Reads tokenizer and template; kBadModel when the folder has no tokenizer or either is malformed.
  explicit TextModel(const ModelFolder& folder);
  TextModel(std::string name, Tokenizer tokenizer, const std::string& chat_template, SamplingDefaults sampling);

  const std::string& name() const { return name_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const SamplingDefaults& sampling() const { return sampling_; }
  bool has_template() const { return template_.has_value(); }

  // messages as normalise_messages() gives them; tools an array or null; kwargs an object. Fails with kInvalidRequest,
  // param "messages", when the template refuses or the prompt cannot fit into `context` tokens.
  ChatPrompt chat(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                  const nlohmann::ordered_json& kwargs, int context) const;
  // A text as it is, added tokens recognised: the whole prompt is the client's own. param names the field.
  std::vector<int32_t> encode(std::string_view text, int context, const std::string& param) const;

 private:
  std::string name_;
  Tokenizer tokenizer_;
  std::optional<ChatTemplate> template_;
  SamplingDefaults sampling_;
  size_t longest_token_ = 1;  // bytes
};

}  // namespace mettle
