#include "text/jinja_format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {
namespace {

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  bool comma = false, underscore = false;
  size_t width = 0;
  int precision = -1;
  char type = 0;
};

std::string ascii_only(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const uint32_t c = next_char(text, i);
    char buffer[16];
    if (c < 0x80) {
      out += char(c);
    } else {
      const char* form = c <= 0xFF ? "\\x%02x" : c <= 0xFFFF ? "\\u%04x" : "\\U%08x";
      out.append(buffer, size_t(std::snprintf(buffer, sizeof buffer, form, c)));
    }
  }
  return out;
}

std::string digits_in_base(Int value, unsigned base, bool upper) {
  unsigned __int128 rest = value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string out;
  do {
    out += (upper ? "0123456789ABCDEF" : "0123456789abcdef")[unsigned(rest % base)];
    rest /= base;
  } while (rest != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

// Widths and precisions come from the template; a thousand digits are more than a double has.
constexpr int kMaxPrecision = 1100;

// |value| without its sign.
std::string float_digits(Runtime& rt, double value, const Spec& spec) {
  if (spec.precision > kMaxPrecision)
    rt.error("format: precision must be at most " + std::to_string(kMaxPrecision) + ", got " +
             std::to_string(spec.precision));
  value = std::abs(value);
  const char type = spec.type == '%' || spec.type == 0 ? 'f' : spec.type;
  const bool upper = type == 'F' || type == 'E' || type == 'G';
  if (!std::isfinite(value)) return std::isnan(value) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf");
  if (spec.type == '%') value *= 100;
  if (spec.type == 0 && spec.precision < 0) return float_text(value);
  std::string form = std::string("%") + (spec.alternate ? "#" : "") + ".*";
  form += spec.type == 0 || type == 'n' ? 'g' : type;
  char buffer[1600];
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  std::string out(buffer, size_t(std::snprintf(buffer, sizeof buffer, form.c_str(), precision, value)));
  if (spec.type == 0 && out.find_first_of(".e") == std::string::npos) out += ".0";
  if (spec.type == '%') out += '%';
  return out;
}

void group_digits(std::string& digits, char separator, size_t size) {
  size_t end = digits.find_first_not_of("0123456789abcdefABCDEF");
  if (end == std::string::npos) end = digits.size();
  for (size_t at = end; at > size; at -= size) digits.insert(at - size, 1, separator);
}

std::string pad(Runtime& rt, std::string sign, std::string body, const Spec& spec, char natural) {
  const size_t size = count_chars(sign) + count_chars(body);
  if (spec.width <= size) return sign + body;
  const size_t missing = spec.width - size;
  rt.reserve(missing > SIZE_MAX / 8 ? SIZE_MAX : missing * spec.fill.size());
  const auto filled = [&](size_t n) {
    std::string out;
    for (size_t i = 0; i < n; i++) out += spec.fill;
    return out;
  };
  switch (spec.align ? spec.align : natural) {
    case '<':
      return sign + body + filled(missing);
    case '^':
      return filled(missing / 2) + sign + body + filled(missing - missing / 2);
    case '=':
      return sign + filled(missing) + body;
    default:
      return filled(missing) + sign + body;
  }
}

std::string sign_text(bool negative, char wanted) {
  return negative ? "-" : wanted == '+' ? "+" : wanted == ' ' ? " " : "";
}

size_t read_number(Runtime& rt, std::string_view text, size_t& at) {
  size_t n = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; at++) {
    n = n * 10 + size_t(text[at] - '0');
    if (n > 1u << 30) rt.error("format: too many decimal digits in '" + std::string(text) + "'");
  }
  return n;
}

Spec parse_spec(Runtime& rt, std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  size_t after = 0;
  if (!text.empty()) next_char(text, after);
  if (after < text.size() && is_align(text[after])) {
    spec.fill = text.substr(0, after);
    spec.align = text[after];
    at = after + 1;
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[at++];
  }
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  if (at < text.size() && text[at] == '#') spec.alternate = text[at++];
  if (at < text.size() && text[at] == '0') {
    at++;
    if (!spec.align) {
      spec.fill = "0";
      spec.align = '=';
    }
  }
  spec.width = read_number(rt, text, at);
  if (at < text.size() && text[at] == ',') spec.comma = text[at++];
  if (at < text.size() && text[at] == '_') spec.underscore = text[at++];
  if (at < text.size() && text[at] == '.') {
    const size_t digits = ++at;
    spec.precision = int(read_number(rt, text, at));
    if (at == digits) rt.error("format: the precision is missing in '" + std::string(text) + "'");
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) rt.error("format: invalid specification '" + std::string(text) + "'");
  return spec;
}

// A byte of a character beyond ASCII may not stand in a message alone.
std::string code_name(char code) {
  char buffer[8];
  if (code >= ' ' && code < 0x7F) return std::string("'") + code + "'";
  return std::string(buffer, size_t(std::snprintf(buffer, sizeof buffer, "0x%02x", unsigned(uint8_t(code)))));
}

[[noreturn]] void bad_code(Runtime& rt, char code, const Value& v) {
  rt.error("unknown format code " + code_name(code) + " for an object of type '" + type_name(v) + "'");
}

std::string format_int(Runtime& rt, Int value, const Value& v, const Spec& spec) {
  if (spec.precision >= 0) rt.error("precision is not allowed in an integer format");
  unsigned base = 10;
  std::string prefix;
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
      break;
    case 'b':
      base = 2;
      prefix = "0b";
      break;
    case 'o':
      base = 8;
      prefix = "0o";
      break;
    case 'x':
      base = 16;
      prefix = "0x";
      break;
    case 'X':
      base = 16;
      prefix = "0X";
      break;
    case 'c': {
      if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
        rt.error("%c: the argument is no character");
      std::string c;
      append_char(c, uint32_t(value));
      return pad(rt, "", c, spec, '<');
    }
    default:
      bad_code(rt, spec.type, v);
  }
  std::string digits = digits_in_base(value, base, spec.type == 'X');
  if (spec.comma) group_digits(digits, ',', 3);
  if (spec.underscore) group_digits(digits, '_', base == 10 ? 3 : 4);
  const std::string sign = sign_text(value < 0, spec.sign) + (spec.alternate ? prefix : "");
  return pad(rt, sign, digits, spec, '>');
}

std::string format_value(Runtime& rt, const Value& v, std::string_view spec_text) {
  if (spec_text.empty()) return to_str(rt, v);
  const Spec spec = parse_spec(rt, spec_text);
  const bool float_type = spec.type && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  if (v.is_integral() && !float_type) {
    if (v.is(Kind::kBool) && spec.type == 0) return pad(rt, "", v.boolean ? "True" : "False", spec, '<');
    return format_int(rt, v.as_int(), v, spec);
  }
  if (v.is_number()) {
    if (spec.type && !float_type && spec.type != 'n') bad_code(rt, spec.type, v);
    std::string digits = float_digits(rt, v.as_double(), spec);
    if (spec.comma) group_digits(digits, ',', 3);
    if (spec.underscore) group_digits(digits, '_', 3);
    return pad(rt, sign_text(std::signbit(v.as_double()), spec.sign), digits, spec, '>');
  }
  if (!v.is_string()) rt.error(std::string("unsupported format string passed to ") + type_name(v));
  if (spec.type && spec.type != 's') bad_code(rt, spec.type, v);
  if (spec.align == '=' && spec.fill != "0") rt.error("'=' alignment not allowed in string format specifier");
  if (spec.sign != '-' || spec.alternate || spec.comma)
    rt.error("format: sign, '#' and ',' are not allowed for a string");
  Spec text_spec = spec;
  if (text_spec.align == '=') text_spec.align = '<';
  std::string_view text = v.str();
  if (spec.precision >= 0) text = text.substr(0, byte_offset(text, size_t(spec.precision)));
  return pad(rt, "", std::string(text), text_spec, '<');
}

class PercentFormatter {
 public:
  PercentFormatter(Runtime& rt, const Value& text, const Value& values)
      : rt_(rt), text_(text.str()), values_(values), escape_(text.is_markup()) {}

  std::string run() {
    std::string out;
    for (size_t at = 0; at < text_.size();) {
      const size_t percent = std::min(text_.find('%', at), text_.size());
      out += text_.substr(at, percent - at);
      at = percent;
      if (at < text_.size()) {
        at++;
        convert(out, at);
      }
      rt_.check_size(out.size());
    }
    const bool mapping = values_.is(Kind::kDict) || values_.is(Kind::kList) || values_.is(Kind::kNamespace);
    if (values_.is(Kind::kTuple) ? used_ < values_.items().size() : used_ == 0 && !by_name_ && !mapping)
      rt_.error("not all arguments converted during string formatting");
    return out;
  }

 private:
  Value take() {
    if (values_.is(Kind::kTuple)) {
      if (used_ >= values_.items().size()) rt_.error("not enough arguments for format string");
      return values_.items()[used_++];
    }
    if (used_++ > 0) rt_.error("not enough arguments for format string");
    return values_;
  }

  size_t number_or_star(size_t& at, bool& negative) {
    if (at < text_.size() && text_[at] == '*') {
      at++;
      const Value v = take();
      if (!v.is_integral()) rt_.error("* wants int");
      if (v.as_int() > 1 << 30 || v.as_int() < -(1 << 30)) rt_.error("format: the width or precision is too big");
      negative = v.as_int() < 0;
      return size_t(negative ? -v.as_int() : v.as_int());
    }
    return read_number(rt_, text_, at);
  }

  void convert(std::string& out, size_t& at) {
    Value value;
    bool named = false;
    if (at < text_.size() && text_[at] == '(') {
      if (!values_.is(Kind::kDict)) rt_.error("format requires a mapping");
      const size_t begin = ++at;
      for (int depth = 1; at < text_.size(); at++) {
        depth += text_[at] == '(' ? 1 : text_[at] == ')' ? -1 : 0;
        if (depth == 0) break;
      }
      if (at >= text_.size()) rt_.error("incomplete format key");
      const std::string_view key = text_.substr(begin, at++ - begin);
      const Value* found = values_.dict().find(key);
      if (!found) rt_.error("the format key " + text_repr(key) + " is missing");
      value = *found;
      named = by_name_ = true;
    }
    Spec spec;
    bool zero = false, left = false;
    for (; at < text_.size(); at++) {
      const char c = text_[at];
      if (c == '-')
        left = true;
      else if (c == '+')
        spec.sign = '+';
      else if (c == ' ')
        spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (c == '#')
        spec.alternate = true;
      else if (c == '0')
        zero = true;
      else
        break;
    }
    bool negative = false;
    spec.width = number_or_star(at, negative);
    left |= negative;
    if (at < text_.size() && text_[at] == '.') {
      at++;
      negative = false;
      const size_t precision = number_or_star(at, negative);
      spec.precision = negative ? 0 : int(precision);
    }
    while (at < text_.size() && (text_[at] == 'h' || text_[at] == 'l' || text_[at] == 'L')) at++;
    if (at >= text_.size()) rt_.error("incomplete format");
    spec.type = text_[at++];
    spec.align = left ? '<' : '>';
    if (spec.type == '%') {
      out += '%';
      return;
    }
    if (!named) value = take();
    out += converted(value, spec, zero && !left);
  }

  std::string converted(const Value& v, Spec spec, bool zero) {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        std::string text = spec.type == 's' ? to_str(rt_, v) : to_repr(rt_, v);
        if (spec.type == 'a') text = ascii_only(text);
        if (escape_ && !(spec.type == 's' && v.is_markup())) text = escape_html(text);
        if (spec.precision >= 0) text.resize(byte_offset(text, size_t(spec.precision)));
        return pad(rt_, "", text, spec, '>');
      }
      case 'c': {
        std::string c;
        if (v.is_string() && v.text->chars == 1)
          c = v.str();
        else if (v.is_integral())
          c = format_int(rt_, v.as_int(), v, Spec{.type = 'c'});
        else
          rt_.error("%c requires int or char");
        return pad(rt_, "", c, spec, '>');
      }
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return integer(v, spec, zero);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (v.is_undefined()) rt_.undefined_error(v);
        if (!v.is_number()) rt_.error(std::string("must be real number, not ") + type_name(v));
        if (zero) zero_fill(spec);
        return pad(rt_, sign_text(std::signbit(v.as_double()), spec.sign), float_digits(rt_, v.as_double(), spec), spec,
                   '>');
      }
      default:
        rt_.error("unsupported format character " + code_name(spec.type));
    }
  }

  static void zero_fill(Spec& spec) {
    spec.fill = "0";
    spec.align = '=';
  }

  std::string integer(const Value& v, Spec spec, bool zero) {
    if (v.is_undefined()) rt_.undefined_error(v);
    if (!v.is_number() || (v.is(Kind::kFloat) && (spec.type == 'o' || spec.type == 'x' || spec.type == 'X')))
      rt_.error(std::string("%") + spec.type + " format: a number is required, not " + type_name(v));
    if (v.is(Kind::kFloat) && !(std::abs(v.number) < 0x1p126)) rt_.error("%d format: the number is out of range");
    const Int i = v.is(Kind::kFloat) ? Int(v.number) : v.as_int();
    const unsigned base = spec.type == 'o' ? 8 : spec.type == 'x' || spec.type == 'X' ? 16 : 10;
    std::string digits = digits_in_base(i, base, spec.type == 'X');
    if (spec.precision > int(digits.size())) {
      rt_.reserve(size_t(spec.precision));
      digits.insert(0, size_t(spec.precision) - digits.size(), '0');
    }
    std::string sign = sign_text(i < 0, spec.sign);
    if (spec.alternate && base != 10) sign += base == 8 ? "0o" : spec.type == 'x' ? "0x" : "0X";
    if (zero) zero_fill(spec);
    return pad(rt_, sign, digits, spec, '>');
  }

  Runtime& rt_;
  std::string_view text_;
  const Value& values_;
  bool escape_;
  bool by_name_ = false;
  size_t used_ = 0;
};

class BraceFormatter {
 public:
  BraceFormatter(Runtime& rt, const Call& call, bool escape) : rt_(rt), call_(call), escape_(escape) {}

  std::string run(std::string_view text, int depth) {
    if (depth > 2) rt_.error("format: max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const char c = text[at++];
      if (c != '{' && c != '}') {
        out += c;
        continue;
      }
      if (at < text.size() && text[at] == c) {
        out += c;
        at++;
        continue;
      }
      if (c == '}') rt_.error("format: single '}' encountered in format string");
      const size_t begin = at;
      int open = 1, brackets = 0;
      for (; at < text.size(); at++) {
        if (text[at] == '[') brackets++;
        if (text[at] == ']') brackets = std::max(0, brackets - 1);
        open += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
        if (open == 0) break;
      }
      if (open) rt_.error("format: expected '}' before end of string");
      out += field(text.substr(begin, at++ - begin), depth);
      rt_.check_size(out.size());
    }
    return out;
  }

 private:
  std::string field(std::string_view text, int depth) {
    rt_.step();
    std::string_view spec, name = text;
    char conversion = 0;
    size_t end = 0;
    for (bool bracket = false; end < text.size(); end++) {
      if (text[end] == '[') bracket = true;
      if (text[end] == ']') bracket = false;
      if (!bracket && (text[end] == ':' || text[end] == '!')) break;
    }
    name = text.substr(0, end);
    if (end < text.size() && text[end] == '!') {
      if (end + 1 >= text.size()) rt_.error("format: end of string while looking for conversion specifier");
      conversion = text[end + 1];
      end += 2;
      if (end < text.size() && text[end] != ':') rt_.error("format: expected ':' after conversion specifier");
    }
    if (end < text.size()) spec = text.substr(end + 1);
    Value v = lookup(name);
    const std::string expanded =
        spec.find_first_of("{}") == std::string_view::npos ? std::string(spec) : run(spec, depth + 1);
    if (conversion == 'r')
      v = rt_.text(to_repr(rt_, v));
    else if (conversion == 'a')
      v = rt_.text(ascii_only(to_repr(rt_, v)));
    else if (conversion == 's')
      v = rt_.text(to_str(rt_, v));
    else if (conversion)
      rt_.error("format: unknown conversion specifier " + code_name(conversion));
    if (escape_ && v.is_markup()) {
      if (!expanded.empty()) rt_.error("unsupported format specification for Markup");
      return std::string(v.str());
    }
    const std::string out = format_value(rt_, v, expanded);
    return escape_ ? escape_html(out) : out;
  }

  static bool is_number(std::string_view s) {
    return !s.empty() && s.find_first_not_of("0123456789") == std::string_view::npos;
  }

  Value lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    const std::string_view first = name.substr(0, end);
    Value v;
    if (first.empty() || is_number(first)) {
      if (first.empty() ? manual_ : numbered_)
        rt_.error("format: cannot mix automatic field numbering and manual specification");
      (first.empty() ? numbered_ : manual_) = true;
      size_t at = 0;
      const size_t i = first.empty() ? next_++ : read_number(rt_, first, at);
      if (i >= call_.args.size()) rt_.error("format: replacement index " + std::to_string(i) + " out of range");
      v = call_.args[i];
    } else {
      const Value* found = call_.find(first);
      if (!found) rt_.error("format: the key " + text_repr(first) + " is missing");
      v = *found;
    }
    for (size_t at = end; at < name.size();) {
      rt_.step();
      if (name[at] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", at + 1), name.size());
        if (stop == at + 1) rt_.error("format: empty attribute in format string");
        v = get_attribute(rt_, v, name.substr(at + 1, stop - at - 1));
        at = stop;
      } else if (name[at] == '[') {
        const size_t stop = name.find(']', at);
        if (stop == std::string_view::npos) rt_.error("format: missing ']' in format string");
        const std::string_view key = name.substr(at + 1, stop - at - 1);
        if (key.empty()) rt_.error("format: empty attribute in format string");
        size_t digits = 0;
        v = get_item(rt_, v,
                     is_number(key) ? Value::of_int(Int(read_number(rt_, key, digits))) : rt_.text(std::string(key)));
        at = stop + 1;
      } else {
        rt_.error("format: only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return v;
  }

  Runtime& rt_;
  const Call& call_;
  bool escape_;
  bool numbered_ = false, manual_ = false;
  size_t next_ = 0;
};

}  // namespace

Value percent_format(Runtime& rt, const Value& text, const Value& values) {
  rt.walk_bytes(text.str().size());
  return rt.text(PercentFormatter(rt, text, values).run(), text.is_markup());
}

Value brace_format(Runtime& rt, const Value& text, const Call& call) {
  rt.walk_bytes(text.str().size());
  return rt.text(BraceFormatter(rt, call, text.is_markup()).run(text.str(), 1), text.is_markup());
}

}  // namespace mettle::jinja
