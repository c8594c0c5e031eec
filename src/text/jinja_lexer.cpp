#include "text/jinja_lexer.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {
namespace {

constexpr size_t kMaxSource = size_t{4} << 20;

std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); i++) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') i++;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(with_plain_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) root();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest(size_t at) const { return std::string_view(text_).substr(std::min(at, text_.size())); }
  bool here(std::string_view what, size_t at) const { return rest(at).starts_with(what); }
  size_t skip_space(size_t at) const { return text_.size() - strip_left(rest(at)).size(); }

  Token& add(TokenKind kind, std::string text) {
    tokens_.push_back({kind, line_, std::move(text)});
    return tokens_.back();
  }

  void advance(size_t to) {
    line_ += int(std::count(text_.begin() + long(at_), text_.begin() + long(to), '\n'));
    line_starting_ = to > at_ && text_[to - 1] == '\n';
    at_ = to;
  }

  // The end of a tag at `at`: "+%}", "-%}" with the space behind it, "%}" with one newline. npos when none is there.
  size_t tag_end(std::string_view close, size_t at) const {
    if (here("-", at) && here(close, at + 1)) return skip_space(at + 3);
    if (here("+", at) && here(close, at + 1)) return at + 3;
    if (here(close, at)) return at + 2 + here("\n", at + 2);
    return std::string::npos;
  }

  // The text up to a tag that begins at `tag`, whose white space control is `sign`.
  void add_data(size_t tag, char sign, bool strips_line) {
    std::string_view data = std::string_view(text_).substr(at_, tag - at_);
    if (sign == '-') {
      data = strip_right(data);
    } else if (sign != '+' && strips_line) {
      const size_t line = data.rfind('\n') + 1;
      if ((line > 0 || line_starting_) && strip_left(data.substr(line)).empty()) data = data.substr(0, line);
    }
    if (!data.empty()) add(TokenKind::kData, std::string(data));
    advance(tag);
  }

  char sign_at(size_t at) const { return here("-", at) || here("+", at) ? text_[at] : 0; }

  void root() {
    size_t tag = at_;
    while (true) {
      tag = text_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= text_.size()) {
        add_data(text_.size(), '+', false);
        return;
      }
      const char c = text_[tag + 1];
      if (c == '{' || c == '%' || c == '#') break;
      tag++;
    }
    const char type = text_[tag + 1];
    const char sign = sign_at(tag + 2);
    const size_t inside = tag + 2 + (sign != 0);
    if (type == '%' && raw(tag, sign, inside)) return;
    add_data(tag, sign, type != '{');
    if (type == '#') {
      comment(inside);
      return;
    }
    add(type == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    advance(inside);
    tag_tokens(type == '{');
  }

  bool raw(size_t tag, char sign, size_t inside) {
    size_t at = skip_space(inside);
    if (!here("raw", at)) return false;
    at = skip_space(at + 3);
    if (here("-%}", at))
      at = skip_space(at + 3);
    else if (here("%}", at))
      at += 2;
    else
      return false;
    add_data(tag, sign, true);
    advance(at);
    for (size_t close = text_.find("{%", at_); close != std::string::npos; close = text_.find("{%", close + 1)) {
      const char close_sign = sign_at(close + 2);
      size_t name = skip_space(close + 2 + (close_sign != 0));
      if (!here("endraw", name)) continue;
      const size_t end = tag_end("%}", skip_space(name + 6));
      if (end == std::string::npos) continue;
      add_data(close, close_sign, true);
      advance(end);
      return true;
    }
    // Jinja2 has nothing against a raw tag or a comment that begins where the template ends.
    if (at_ == text_.size()) return true;
    syntax_error(line_, "missing end of raw directive");
  }

  void comment(size_t inside) {
    const size_t close = text_.find("#}", inside);
    if (close != std::string::npos) {
      const char before = close > inside ? text_[close - 1] : 0;
      advance(tag_end("#}", close - (before == '-' || before == '+')));
      return;
    }
    if (inside < text_.size()) syntax_error(line_, "missing end of comment tag");
    advance(inside);
  }

  void tag_tokens(bool variable) {
    std::string open;  // brackets whose ends are awaited
    while (true) {
      if (at_ >= text_.size()) return;
      if (open.empty() && ends(variable)) return;
      const size_t space = skip_space(at_);
      if (space > at_) {
        advance(space);
        continue;
      }
      if (number() || name() || string()) continue;
      operation(open);
    }
  }

  bool ends(bool variable) {
    size_t end = std::string::npos;
    if (!variable)
      end = tag_end("%}", at_);
    else if (here("-}}", at_))
      end = skip_space(at_ + 3);
    else if (here("}}", at_))
      end = at_ + 2;
    if (end == std::string::npos) return false;
    add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "");
    advance(end);
    return true;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  char peek(size_t at) const { return at < text_.size() ? text_[at] : 0; }

  // Digits of a base with single underscores between them, from `at` on; `at` itself when there are none.
  template <class Test>
  size_t digits(size_t at, const Test& test, bool underscore_first = false) const {
    size_t end = at;
    while (true) {
      const size_t next = end + (peek(end) == '_' && (end > at || underscore_first));
      if (!test(peek(next))) return end;
      end = next + 1;
    }
  }

  bool number() {
    if (!is_digit(peek(at_))) return false;
    const size_t whole = digits(at_, is_digit);
    size_t end = whole;
    if (at_ == 0 || text_[at_ - 1] != '.') {
      size_t fraction = whole;
      if (peek(whole) == '.' && is_digit(peek(whole + 1))) fraction = digits(whole + 1, is_digit);
      end = fraction;
      if (peek(end) == 'e' || peek(end) == 'E') {
        const size_t sign = end + 1 + (peek(end + 1) == '+' || peek(end + 1) == '-');
        if (is_digit(peek(sign))) end = digits(sign, is_digit);
      }
    }
    if (end > whole) {
      std::string plain = text_.substr(at_, end - at_);
      std::erase(plain, '_');
      add(TokenKind::kFloat, plain).number = std::strtod(plain.c_str(), nullptr);
      advance(end);
      return true;
    }
    integer(whole);
    return true;
  }

  void integer(size_t decimal_end) {
    int base = 10;
    size_t begin = at_, end = decimal_end;
    if (peek(at_) == '0') {
      const char kind = char(std::tolower(peek(at_ + 1)));
      const auto hex = [](char c) { return std::isxdigit(uint8_t(c)) != 0; };
      const auto octal = [](char c) { return c >= '0' && c <= '7'; };
      const auto binary = [](char c) { return c == '0' || c == '1'; };
      const size_t prefixed = kind == 'x'   ? digits(at_ + 2, hex, true)
                              : kind == 'o' ? digits(at_ + 2, octal, true)
                              : kind == 'b' ? digits(at_ + 2, binary, true)
                                            : at_ + 2;
      if (prefixed > at_ + 2) {
        base = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
        begin = at_ + 2;
        end = prefixed;
      } else {
        end = digits(at_, [](char c) { return c == '0'; });
      }
    }
    Int value = 0;
    for (size_t i = begin; i < end; i++) {
      const char c = text_[i];
      if (c == '_') continue;
      const int digit = is_digit(c) ? c - '0' : std::tolower(c) - 'a' + 10;
      if (__builtin_mul_overflow(value, Int(base), &value) || __builtin_add_overflow(value, Int(digit), &value))
        syntax_error(line_, "an integer must have at most 127 bits, got " + text_.substr(begin, end - begin));
    }
    add(TokenKind::kInteger, text_.substr(at_, end - at_)).integer = value;
    advance(end);
  }

  bool name() {
    size_t end = at_;
    while (end < text_.size()) {
      size_t next = end;
      const uint32_t c = next_char(text_, next);
      // Python's identifiers beyond ASCII: letters and marks; marks are not letters but printable and no space.
      const bool fits =
          c < 0x80 ? std::isalnum(int(c)) || c == '_' : in_class(kAlpha, c) || in_class(kNumeric, c) || is_mark(c);
      if (!fits) break;
      end = next;
    }
    if (end == at_) return false;
    add(TokenKind::kName, text_.substr(at_, end - at_));
    advance(end);
    return true;
  }

  static bool is_mark(uint32_t c) { return in_class(kCaseIgnorable, c) && in_class(kPrintable, c) && c > 0x2FF; }

  bool string() {
    const char quote = peek(at_);
    if (quote != '"' && quote != '\'') return false;
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return false;
    add(TokenKind::kString, unescape(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
    return true;
  }

  // As bytes.decode("unicode-escape") behind str.encode("ascii", "backslashreplace").
  std::string unescape(std::string_view s) const {
    std::string out;
    for (size_t i = 0; i < s.size();) {
      if (s[i] != '\\') {
        out += s[i++];
        continue;
      }
      i++;
      const char c = s[i];
      if (uint8_t(c) >= 0x80) {
        // The character was written as an escape itself, whose backslash this one now quotes.
        const uint32_t code = next_char(s, i);
        char buffer[16];
        std::snprintf(buffer, sizeof buffer, code <= 0xFF ? "\\x%02x" : code <= 0xFFFF ? "\\u%04x" : "\\U%08x", code);
        out += buffer;
        continue;
      }
      i++;
      constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
      if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
        out += kTo[simple];
      } else if (c == '\n') {
      } else if (c >= '0' && c <= '7') {
        uint32_t code = uint32_t(c - '0');
        for (int n = 1; n < 3 && i < s.size() && s[i] >= '0' && s[i] <= '7'; n++)
          code = code * 8 + uint32_t(s[i++] - '0');
        append_char(out, code);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        append_char(out, hex_escape(s, i, c == 'x' ? 2 : c == 'u' ? 4 : 8));
      } else if (c == 'N') {
        syntax_error(line_, "character names (\\N{...}) are not supported");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  uint32_t hex_escape(std::string_view s, size_t& i, size_t length) const {
    uint32_t code = 0;
    for (size_t n = 0; n < length; n++, i++) {
      if (i >= s.size() || !std::isxdigit(uint8_t(s[i])))
        syntax_error(line_, "an escape in a string must have " + std::to_string(length) + " hexadecimal digits");
      code = code * 16 + uint32_t(is_digit(s[i]) ? s[i] - '0' : std::tolower(s[i]) - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      syntax_error(line_, "an escape in a string is no character");
    return code;
  }

  void operation(std::string& open) {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    size_t length = 0;
    for (const std::string_view two : kTwo) {
      if (here(two, at_)) length = 2;
    }
    if (length == 0 && kOne.find(text_[at_]) != std::string_view::npos) length = 1;
    if (length == 0) {
      size_t end = at_;
      next_char(text_, end);
      syntax_error(line_, "unexpected character '" + text_.substr(at_, end - at_) + "'");
    }
    const std::string sign = text_.substr(at_, length);
    if (sign == "{" || sign == "(" || sign == "[") {
      open += sign == "{" ? '}' : sign == "(" ? ')' : ']';
    } else if (sign == "}" || sign == ")" || sign == "]") {
      if (open.empty()) syntax_error(line_, "unexpected '" + sign + "'");
      if (open.back() != sign[0]) syntax_error(line_, "unexpected '" + sign + "', expected '" + open.back() + "'");
      open.pop_back();
    }
    add(TokenKind::kOperator, sign);
    advance(at_ + length);
  }

  std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

void syntax_error(int line, const std::string& what) {
  fail(Code::kBadModel, "chat template, line " + std::to_string(line) + ": " + shortened(what, 1000));
}

std::vector<Token> tokenize_template(std::string_view source) {
  if (source.size() > kMaxSource)
    fail(Code::kBadModel, "chat template: must have at most " + std::to_string(kMaxSource) + " bytes, got " +
                              std::to_string(source.size()));
  return Lexer(source).run();
}

}  // namespace mettle::jinja
