// Cuts a template into text and tokens, with white space handled as Jinja2 does under trim_blocks and lstrip_blocks.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace mettle::jinja {

enum class TokenKind {
  kData,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // data, the name, the decoded string, the operator
  Int integer = 0;
  double number = 0;

  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool is_operator(std::string_view sign) const { return kind == TokenKind::kOperator && text == sign; }
};

// Fails with kBadModel, naming the line.
[[noreturn]] void syntax_error(int line, const std::string& what);
// The last token is kEnd.
std::vector<Token> tokenize_template(std::string_view source);

}  // namespace mettle::jinja
