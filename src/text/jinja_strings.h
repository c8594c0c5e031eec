// What both the methods of str and the filters do to text, within the limits of a render.
#pragma once
#include "text/jinja_runtime.h"

namespace mettle::jinja {

// count < 0: all of them.
std::string replace_text(Runtime& rt, std::string_view text, std::string_view from, std::string_view to, Int count);
// To `width` characters with a fill of one character: behind the text, before it, or on both sides as str.center does.
std::string pad_text(Runtime& rt, std::string_view text, Int width, std::string_view fill, bool behind, bool before);
bool has_case_only(std::string_view text, bool upper);  // str.isupper, str.islower

}  // namespace mettle::jinja
