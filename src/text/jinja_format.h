// Python's two ways to fill in a text: "%s" % values and "{}".format(values).
#pragma once
#include "text/jinja_runtime.h"

namespace mettle::jinja {

// text % values; a Markup escapes what it takes in.
Value percent_format(Runtime& rt, const Value& text, const Value& values);
// text.format(...): indices, names, attributes and items, !r !s !a, and format specifications.
Value brace_format(Runtime& rt, const Value& text, const Call& call);

}  // namespace mettle::jinja
