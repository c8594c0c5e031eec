// Keeps text that a client wrote apart from the control tokens of a rendered chat template; see text_model.h.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace mettle {

class UntrustedText {
 public:
  explicit UntrustedText(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // Sets marks around strings (and keys) of value that spell an added token. White space at their ends stays outside,
  // because templates trim it. Strings under "role" and "type" are the template's own words and stay as they are.
  void mark(nlohmann::ordered_json& value);
  // Past replies: <think> and </think> stay visible to the template, which cuts the reasoning out at them.
  void mark_reply(std::string& text);
  bool any() const { return any_; }

  // Encodes a prompt rendered from marked values. Fails with kInvalidRequest when the template tore the marks apart.
  std::vector<int32_t> encode(std::string_view rendered) const;
  // What the template itself wrote: the prompt without the marked text.
  static std::string trusted(std::string_view rendered);

 private:
  bool spells_token(std::string_view text) const;
  void mark_text(std::string& text);

  const Tokenizer* tokenizer_;
  bool any_ = false;
};

}  // namespace mettle
