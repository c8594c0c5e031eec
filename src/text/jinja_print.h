// Values as text: str(), repr() and json.dumps() of Python.
#pragma once
#include "text/jinja_runtime.h"

namespace mettle::jinja {

const char* type_name(const Value& v);  // type(v).__name__

std::string int_text(Int i);
std::string float_text(double f);  // repr of a float: the shortest digits that read back the same

std::string to_str(Runtime& rt, const Value& v);
std::string to_repr(Runtime& rt, const Value& v);
std::string text_repr(std::string_view text);  // with Python's choice of quotes and escapes
std::string escape_html(std::string_view text);
// str, or the string itself when it is one already (a Markup stays one).
Value soft_text(Runtime& rt, const Value& v);
// markupsafe.escape: a Markup stays as it is, anything else is printed and escaped.
std::string escaped(Runtime& rt, const Value& v);

struct JsonStyle {
  bool ascii = false;
  bool indented = false;
  bool sort_keys = false;
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(Runtime& rt, const Value& v, const JsonStyle& style);

}  // namespace mettle::jinja
