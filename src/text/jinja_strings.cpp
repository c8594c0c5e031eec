#include "text/jinja_strings.h"

#include "text/jinja_unicode.h"

namespace mettle::jinja {

std::string replace_text(Runtime& rt, std::string_view text, std::string_view from, std::string_view to, Int count) {
  rt.walk_bytes(text.size());
  std::string out;
  size_t at = 0;
  const auto put = [&](std::string_view piece) {
    rt.check_size(out.size() + piece.size());
    out += piece;
  };
  if (from.empty()) {
    // Before every character and at the end.
    for (Int n = 0; count < 0 || n < count; n++) {
      rt.step();
      put(to);
      if (at >= text.size()) return out;
      const size_t begin = at;
      next_char(text, at);
      put(text.substr(begin, at - begin));
    }
  }
  for (Int n = 0; !from.empty() && (count < 0 || n < count); n++) {
    const size_t hit = find_text(text, from, at);
    if (hit == std::string_view::npos) break;
    rt.step();
    put(text.substr(at, hit - at));
    put(to);
    at = hit + from.size();
  }
  put(text.substr(at));
  return out;
}

std::string pad_text(Runtime& rt, std::string_view text, Int width, std::string_view fill, bool behind, bool before) {
  const Int size = Int(count_chars(text));
  if (width <= size) return std::string(text);
  const Int missing = width - size;
  if (missing > Int(1) << 32) rt.check_size(SIZE_MAX);
  rt.reserve(text.size() + size_t(missing) * fill.size());
  // str.center puts the odd one to the left when the width is odd.
  Int left = before ? missing : 0;
  if (!before && !behind) left = missing / 2 + (missing & width & 1);
  std::string out;
  for (Int i = 0; i < left; i++) out += fill;
  out += text;
  for (Int i = left; i < missing; i++) out += fill;
  return out;
}

bool has_case_only(std::string_view text, bool upper) {
  bool cased = false;
  for (size_t i = 0; i < text.size();) {
    const uint32_t c = next_char(text, i);
    if (in_class(kTitle, c) || in_class(upper ? kLower : kUpper, c)) return false;
    cased |= in_class(upper ? kUpper : kLower, c);
  }
  return cased;
}

}  // namespace mettle::jinja
