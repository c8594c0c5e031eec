#include "server/untrusted_text.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

// Noncharacters of Unicode: valid in UTF-8, meant for use inside a program, never in text.
constexpr std::string_view kOpen = "\xEF\xB7\x90";   // U+FDD0
constexpr std::string_view kClose = "\xEF\xB7\x91";  // U+FDD1
constexpr std::string_view kSpace = " \t\r\n\v\f";

[[noreturn]] void refuse(const std::string& why) { fail(Code::kInvalidRequest, "messages: " + why, "messages"); }

}  // namespace

bool UntrustedText::spells_token(std::string_view text) const {
  if (text.find(kOpen) != std::string_view::npos || text.find(kClose) != std::string_view::npos)
    refuse("must not contain the noncharacters U+FDD0 and U+FDD1");
  return tokenizer_->encode(text, AddedTokens::kAsTokens) != tokenizer_->encode(text, AddedTokens::kAsText);
}

void UntrustedText::mark_text(std::string& text) {
  if (!spells_token(text)) return;
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return;
  const size_t end = text.find_last_not_of(kSpace) + 1;
  text.insert(end, kClose);
  text.insert(begin, kOpen);
  any_ = true;
}

void UntrustedText::mark_reply(std::string& text) {
  static constexpr std::string_view kTags[] = {"<think>", "</think>"};
  if (!spells_token(text)) return;
  std::string out;
  // Where each tag stands next: looked for again only behind it, or a reply full of one of them is read over and over.
  size_t found[] = {text.find(kTags[0]), text.find(kTags[1])};
  for (size_t at = 0; at < text.size();) {
    size_t next = text.size(), length = 0;
    for (size_t i = 0; i < std::size(kTags); ++i) {
      if (found[i] < at) found[i] = text.find(kTags[i], at);
      if (found[i] < next) {
        next = found[i];
        length = kTags[i].size();
      }
    }
    std::string piece = text.substr(at, next - at);
    mark_text(piece);
    out += piece;
    out += text.substr(next, length);
    at = next + length;
  }
  text = std::move(out);
}

void UntrustedText::mark(Json& value) {
  if (value.is_string()) return mark_text(value.get_ref<std::string&>());
  if (value.is_array()) {
    for (Json& item : value) mark(item);
    return;
  }
  if (!value.is_object()) return;
  Json out = Json::object();
  for (auto& [key, item] : value.items()) {
    std::string marked = key;
    mark_text(marked);
    if (key != "role" && key != "type") mark(item);
    out[marked] = std::move(item);
  }
  value = std::move(out);
}

std::vector<int32_t> UntrustedText::encode(std::string_view rendered) const {
  if (!any_) return tokenizer_->encode(rendered, AddedTokens::kAsTokens);
  std::vector<int32_t> ids;
  const auto append = [&](std::string_view text, AddedTokens added) {
    if (text.find(kOpen) != std::string_view::npos || text.find(kClose) != std::string_view::npos)
      refuse("the chat template cuts text apart that contains control tokens");
    const std::vector<int32_t> part = tokenizer_->encode(text, added);
    ids.insert(ids.end(), part.begin(), part.end());
  };
  for (;;) {
    const size_t open = rendered.find(kOpen);
    append(rendered.substr(0, open), AddedTokens::kAsTokens);
    if (open == std::string_view::npos) return ids;
    rendered.remove_prefix(open + kOpen.size());
    const size_t close = rendered.find(kClose);
    if (close == std::string_view::npos) refuse("the chat template cuts text apart that contains control tokens");
    append(rendered.substr(0, close), AddedTokens::kAsText);
    rendered.remove_prefix(close + kClose.size());
  }
}

std::string UntrustedText::trusted(std::string_view rendered) {
  std::string text;
  for (;;) {
    const size_t open = rendered.find(kOpen);
    text += rendered.substr(0, open);
    const size_t close = rendered.find(kClose, open);
    if (open == std::string_view::npos || close == std::string_view::npos) return text;
    rendered.remove_prefix(close + kClose.size());
  }
}

}  // namespace mettle
