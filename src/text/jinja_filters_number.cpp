// Filters on numbers, and the conversions to them.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_unicode.h"

namespace mettle::jinja {
namespace {

// int(text, base) of Python; nullopt where it raises ValueError.
std::optional<Int> parse_int(Runtime& rt, std::string_view text, Int base) {
  text = strip_left(strip_right(text));
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.remove_prefix(1);
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  bool prefixed = false;
  if (text.size() > 1 && text[0] == '0') {
    const char c = char(text[1] | 0x20);
    const Int named = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    if (named != 0 && (base == 0 || base == named)) {
      base = named;
      text.remove_prefix(2);
      prefixed = true;
    }
  }
  if (base == 0) {
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != std::string_view::npos)
      return std::nullopt;
    base = 10;
  }
  Int value = 0;
  bool digit_before = prefixed, any = false, overflow = false;
  for (const char c : text) {
    if (c == '_') {
      if (!digit_before) return std::nullopt;
      digit_before = false;
      continue;
    }
    const char lower = char(c | 0x20);
    const int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    overflow |= __builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, Int(digit), &value);
    digit_before = any = true;
  }
  if (!any || !digit_before) return std::nullopt;
  if (overflow) rt.error("int: the number grew beyond 127 bits");
  return minus ? -value : value;
}

// float(text) of Python.
std::optional<double> parse_float(std::string_view text) {
  text = strip_left(strip_right(text));
  std::string plain;
  for (size_t i = 0; i < text.size(); i++) {
    const auto digit = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; };
    if (text[i] == '_') {
      if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
      continue;
    }
    plain += text[i];
  }
  const size_t sign = plain.starts_with('-') || plain.starts_with('+');
  const std::string word = to_lower(std::string_view(plain).substr(sign));
  const double unit = plain.starts_with('-') ? -1 : 1;
  if (word == "inf" || word == "infinity") return unit * HUGE_VAL;
  if (word == "nan") return std::nan("");
  if (word.empty() || word.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain.c_str(), &end);
  return end == plain.c_str() + plain.size() ? std::optional(value) : std::nullopt;
}

std::optional<double> to_float(Runtime& rt, const Value& v) {
  if (v.is_undefined()) rt.undefined_error(v);
  if (v.is_number()) return v.as_double();
  if (!v.is_string()) return std::nullopt;
  rt.walk_bytes(v.str().size());
  return parse_float(v.str());
}

Value whole(Runtime& rt, double f) {
  if (!(std::abs(f) < 0x1p126)) rt.error("int: the number grew beyond 127 bits");
  return Value::of_int(Int(f));
}

Value int_filter(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "int", call, {"default", "base"});
  const Value other = a[0] ? *a[0] : Value::of_int(0);
  if (v.is_undefined()) rt.undefined_error(v);
  if (v.is_integral()) return Value::of_int(v.as_int());
  if (v.is(Kind::kFloat)) {
    if (std::isinf(v.number)) rt.error("int: cannot convert float infinity to integer");
    return std::isnan(v.number) ? other : whole(rt, v.number);
  }
  if (!v.is_string()) return other;
  rt.walk_bytes(v.str().size());
  if (a[1] && !a[1]->is_integral()) return other;
  if (const auto i = parse_int(rt, v.str(), a[1] ? a[1]->as_int() : 10)) return Value::of_int(*i);
  const auto f = parse_float(v.str());
  return f && std::isfinite(*f) ? whole(rt, *f) : other;
}

Value float_filter(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "float", call, {"default"});
  if (const auto f = to_float(rt, v)) return Value::of_float(*f);
  return a[0] ? *a[0] : Value::of_float(0);
}

Value abs_filter(Runtime& rt, const Value& v, Call& call) {
  bind(rt, "abs", call, {});
  if (v.is_undefined()) rt.undefined_error(v);
  if (v.is_integral()) return v.as_int() < 0 ? negate(rt, v, true) : Value::of_int(v.as_int());
  if (!v.is(Kind::kFloat)) rt.error(std::string("abs: bad operand type '") + type_name(v) + "'");
  return Value::of_float(std::abs(v.number));
}

Int power_of_ten(Runtime& rt, Int n) {
  Int p = 1;
  for (Int i = 0; i < n; i++) {
    if (__builtin_mul_overflow(p, Int(10), &p)) rt.error("round: precision " + int_text(n) + " is out of range");
  }
  return p;
}

// Half goes to the even neighbour, as Python rounds.
Value round_common(Runtime& rt, const Value& v, Int precision) {
  if (v.is_integral()) {
    if (precision >= 0 || precision < -40) return Value::of_int(precision < -40 ? Int(0) : v.as_int());
    const Int unit = power_of_ten(rt, -precision), i = v.as_int();
    const Int rest = i % unit < 0 ? i % unit + unit : i % unit;
    Int down = 0, result = 0;
    bool big = __builtin_sub_overflow(i, rest, &down);
    const bool up = rest > unit - rest || (rest == unit - rest && (down / unit) % 2 != 0);
    big |= __builtin_add_overflow(down, up ? unit : 0, &result);
    if (big) rt.error("round: the number grew beyond 127 bits");
    return Value::of_int(result);
  }
  const double f = v.number;
  if (!std::isfinite(f) || precision > 323) return v;
  if (precision < -308) return Value::of_float(std::copysign(0.0, f));
  if (precision >= 0) {
    char buffer[700];
    std::snprintf(buffer, sizeof buffer, "%.*f", int(precision), f);  // glibc rounds the exact value, half to even
    return Value::of_float(std::strtod(buffer, nullptr));
  }
  const double unit = std::pow(10.0, double(-precision));
  return Value::of_float(std::nearbyint(f / unit) * unit);
}

Value round_filter(Runtime& rt, const Value& v, Call& call) {
  const auto a = bind(rt, "round", call, {"precision", "method"});
  if (v.is_undefined()) rt.undefined_error(v);
  const Value precision = a[0] ? *a[0] : Value::of_int(0);
  const std::string method = a[1] ? to_str(rt, *a[1]) : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    rt.error("round: method must be common, ceil or floor, got " + text_repr(method));
  if (!v.is_number() || !precision.is_integral())
    rt.error(std::string("round: needs a number and an int, got ") + type_name(v) + " and " + type_name(precision));
  if (method == "common") return round_common(rt, v, precision.as_int());
  const Value scale = arithmetic(rt, Arithmetic::kPow, Value::of_int(10), precision);
  const double scaled = arithmetic(rt, Arithmetic::kMul, v, scale).as_double();
  if (!std::isfinite(scaled)) rt.error("round: cannot convert the number to integer, got " + float_text(scaled));
  return arithmetic(rt, Arithmetic::kDiv, whole(rt, method == "ceil" ? std::ceil(scaled) : std::floor(scaled)), scale);
}

constexpr FilterEntry kFilters[] = {
    {"int", int_filter}, {"float", float_filter}, {"abs", abs_filter}, {"round", round_filter}};

}  // namespace

std::span<const FilterEntry> number_filters() { return kFilters; }

}  // namespace mettle::jinja
