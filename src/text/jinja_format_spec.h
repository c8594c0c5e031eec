// A format specification, as "%08.3f" and "{:>8}" hold one, and what it makes of a value.
#pragma once
#include "text/jinja_runtime.h"

namespace mettle::jinja {

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

Spec parse_spec(Runtime& rt, std::string_view text);  // what stands behind the colon of "{:...}"
std::string format_value(Runtime& rt, const Value& v, std::string_view spec_text);  // format(v, spec_text)
std::string format_int(Runtime& rt, Int value, const Value& v, const Spec& spec);

// The parts: digits without a sign, the sign, and both in a field of the wanted width.
std::string float_digits(Runtime& rt, double value, const Spec& spec);
std::string digits_in_base(Int value, unsigned base, bool upper);
std::string sign_text(bool negative, char wanted);
std::string pad(Runtime& rt, std::string sign, std::string body, const Spec& spec, char natural);

size_t read_number(Runtime& rt, std::string_view text, size_t& at);
std::string ascii_only(std::string_view text);  // escapes for everything else, as ascii() writes them
std::string code_name(char code);               // of a format code in a message; a cut character would break it

}  // namespace mettle::jinja
