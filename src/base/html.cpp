#include "base/html.h"

#include <cstdint>

namespace mettle {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

// Bytes of the character at the front; 0: no UTF-8 (cut, overlong, a surrogate, beyond U+10FFFF).
size_t character_at(std::string_view s, uint32_t& code) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    code = first;
    return 1;
  }
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || s.size() < length) return 0;
  code = first & (0x7F >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3F);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  return overlong || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0 : length;
}

// Shown as they are, they would end the line, hide or turn around what stands beside them.
bool misleads(uint32_t c) {
  const bool control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0);
  const bool direction =
      c == 0x61C || c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
  return control || direction || c == 0xFEFF || (c & 0xFFFE) == 0xFFFE;
}

}  // namespace

std::string html_text(std::string_view text, size_t most) {
  std::string out;
  for (size_t n = 0; !text.empty(); ++n) {
    if (n == most) return out + "…";
    uint32_t code = 0;
    const size_t length = character_at(text, code);
    if (length == 0 || misleads(code))
      out += kReplacement;
    else if (code == '&')
      out += "&amp;";
    else if (code == '<')
      out += "&lt;";
    else if (code == '>')
      out += "&gt;";
    else if (code == '"')
      out += "&quot;";
    else if (code == '\'')
      out += "&#39;";
    else
      out += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace mettle
