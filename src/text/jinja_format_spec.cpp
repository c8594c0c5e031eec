#include "text/jinja_format_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja_print.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {

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

namespace {

void group_digits(std::string& digits, char separator, size_t size) {
  size_t end = digits.find_first_not_of("0123456789abcdefABCDEF");
  if (end == std::string::npos) end = digits.size();
  for (size_t at = end; at > size; at -= size) digits.insert(at - size, 1, separator);
}

}  // namespace

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

std::string code_name(char code) {
  char buffer[8];
  if (code >= ' ' && code < 0x7F) return std::string("'") + code + "'";
  return std::string(buffer, size_t(std::snprintf(buffer, sizeof buffer, "0x%02x", unsigned(uint8_t(code)))));
}

namespace {

[[noreturn]] void bad_code(Runtime& rt, char code, const Value& v) {
  rt.error("unknown format code " + code_name(code) + " for an object of type '" + type_name(v) + "'");
}

}  // namespace

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

}  // namespace mettle::jinja
