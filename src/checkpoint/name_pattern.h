// Patterns over module names as quantisation configs write them: exact names, globs, "re:" regular expressions.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace mettle {

// A module name without the prefix that exporters disagree about: "model.language_model.", "language_model.model.",
// "language_model.", "model.".
std::string_view without_model_prefix(std::string_view module);

class NamePattern {
 public:
  // where: the config field, for the message. Fails with kBadModel for a regular expression that does not compile.
  NamePattern(std::string text, const std::string& where);
  NamePattern(NamePattern&&) noexcept;
  NamePattern& operator=(NamePattern&&) noexcept;
  ~NamePattern();

  // Exact name; a glob over the whole name; a regular expression from its start; or a plain name that the module lies
  // in ("layers.3.mlp.experts" has "layers.3.mlp.experts.7.up_proj") or ends with ("mlp.gate"). Model prefixes of
  // pattern and module need not be the same. An expression that does not end within its step limit fails with
  // kBadModel.
  bool matches(std::string_view module) const;
  const std::string& text() const { return text_; }

 private:
  struct Regex;
  std::string text_;
  size_t literal_ = 0;  // characters (without model prefix) before the first wildcard; npos: no wildcard
  std::unique_ptr<Regex> regex_;
};

bool glob_matches(std::string_view glob, std::string_view text);  // * ? [a-z] [!a-z], over the whole text

}  // namespace mettle
