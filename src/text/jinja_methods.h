// The methods of Python's types, one table for each: name, function.
#pragma once
#include <span>

#include "text/jinja_operators.h"

namespace mettle::jinja {

struct MethodEntry {
  std::string_view name;
  Method method;  // nullptr: the sandbox forbids it
};
std::span<const MethodEntry> text_methods();

}  // namespace mettle::jinja
