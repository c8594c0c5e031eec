// Parts of the filters: each file has a table of its own, find_filter asks them in turn.
#pragma once
#include <span>

#include "text/jinja_runtime.h"

namespace mettle::jinja {

struct FilterEntry {
  std::string_view name;
  FilterFunction function;
};
std::span<const FilterEntry> text_filters();
std::span<const FilterEntry> number_filters();
std::span<const FilterEntry> sequence_filters();

// Reads "a.0.b" as filters do: items by name or number, one after the other. None is the item itself.
Value get_path(Runtime& rt, const Value& item, const Value& path, const Value* default_value = nullptr);
Value without_case(Runtime& rt, const Value& v);  // strings in lower case, anything else as it is

}  // namespace mettle::jinja
