#include "text/jinja_unicode.h"

#include <algorithm>
#include <cstring>

namespace mettle::jinja {
namespace {

template <class R>
const R* find_run(std::span<const R> runs, uint32_t c) {
  auto it = std::upper_bound(runs.begin(), runs.end(), c, [](uint32_t v, const R& r) { return v < r.first; });
  if (it == runs.begin()) return nullptr;
  --it;
  return c <= it->last && (c - it->first) % it->stride == 0 ? &*it : nullptr;
}

void append_mapped(std::string& out, const CaseMap& map, uint32_t c) {
  for (const CaseText& t : map.texts) {
    if (t.from == c) {
      out += t.to;
      return;
    }
  }
  const CaseRun* run = find_run(map.runs, c);
  append_char(out, run ? uint32_t(int32_t(c) + run->delta) : c);
}

std::string map_all(std::string_view text, const CaseMap& map) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) append_mapped(out, map, next_char(text, i));
  return out;
}

bool sigma_is_final(std::string_view text, size_t begin, size_t end) {
  bool cased_before = false;
  for (size_t i = begin; i > 0;) {
    size_t start = i - 1;
    while (start > 0 && (uint8_t(text[start]) & 0xC0) == 0x80) start--;
    size_t at = start;
    const uint32_t c = next_char(text, at);
    i = start;
    if (in_class(kCaseIgnorable, c)) continue;
    cased_before = is_cased(c);
    break;
  }
  if (!cased_before) return false;
  for (size_t i = end; i < text.size();) {
    const uint32_t c = next_char(text, i);
    if (in_class(kCaseIgnorable, c)) continue;
    return !is_cased(c);
  }
  return true;
}

void append_lower(std::string& out, std::string_view text, size_t begin, size_t end, uint32_t c) {
  if (c == 0x3A3)
    append_char(out, sigma_is_final(text, begin, end) ? 0x3C2 : 0x3C3);
  else
    append_mapped(out, kToLower, c);
}

bool is_line_end(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool to_strip(uint32_t c, const std::string_view* chars) {
  if (!chars) return is_space(c);
  for (size_t i = 0; i < chars->size();) {
    if (next_char(*chars, i) == c) return true;
  }
  return false;
}

}  // namespace

bool in_class(std::span<const Run> runs, uint32_t c) { return find_run(runs, c) != nullptr; }

bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

uint32_t next_char(std::string_view text, size_t& at) {
  const uint8_t lead = uint8_t(text[at++]);
  if (lead < 0x80) return lead;
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  uint32_t c = lead & (0x3F >> more);
  for (int i = 0; i < more && at < text.size(); i++) c = c << 6 | (uint8_t(text[at++]) & 0x3F);
  return c;
}

uint32_t last_char(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && (uint8_t(text[start]) & 0xC0) == 0x80) start--;
  return next_char(text, start);
}

void append_char(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += {char(0xC0 | c >> 6), char(0x80 | (c & 0x3F))};
  } else if (c < 0x10000) {
    out += {char(0xE0 | c >> 12), char(0x80 | (c >> 6 & 0x3F)), char(0x80 | (c & 0x3F))};
  } else {
    out += {char(0xF0 | c >> 18), char(0x80 | (c >> 12 & 0x3F)), char(0x80 | (c >> 6 & 0x3F)), char(0x80 | (c & 0x3F))};
  }
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = uint8_t(text[i]);
    if (lead < 0x80) {
      i++;
      continue;
    }
    const size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    if (lead < 0xC2 || lead > 0xF4 || i + more >= text.size()) return false;
    for (size_t k = 1; k <= more; k++) {
      if ((uint8_t(text[i + k]) & 0xC0) != 0x80) return false;
    }
    const uint32_t c = next_char(text, i);
    if ((more == 2 && c < 0x800) || (more == 3 && c < 0x10000) || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
      return false;
  }
  return true;
}

size_t count_chars(std::string_view text) {
  size_t n = 0;
  for (const char c : text) n += (uint8_t(c) & 0xC0) != 0x80;
  return n;
}

std::vector<std::string_view> split_chars(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    next_char(text, i);
    out.push_back(text.substr(start, i - start));
  }
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  for (size_t start = 0, i = 0; i < text.size();) {
    const size_t end = i;
    const uint32_t c = next_char(text, i);
    const bool ends = is_line_end(c);
    if (c == '\r' && i < text.size() && text[i] == '\n') i++;
    if (ends || i >= text.size()) {
      out.push_back(text.substr(start, (ends && !keep_ends ? end : i) - start));
      start = i;
    }
  }
  return out;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t at = 0;
  while (index > 0 && at < text.size()) {
    at++;
    while (at < text.size() && (uint8_t(text[at]) & 0xC0) == 0x80) at++;
    index--;
  }
  return at;
}

std::string shortened(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  while (bytes > 0 && (uint8_t(text[bytes]) & 0xC0) == 0x80) bytes--;
  return std::string(text.substr(0, bytes)) + "...";
}

std::string to_upper(std::string_view text) { return map_all(text, kToUpper); }
std::string to_folded(std::string_view text) { return map_all(text, kToFolded); }

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const uint32_t c = next_char(text, i);
    append_lower(out, text, start, i, c);
  }
  return out;
}

std::string to_capitalized(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const uint32_t c = next_char(text, i);
    start == 0 ? append_mapped(out, kToTitle, c) : append_lower(out, text, start, i, c);
  }
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const uint32_t c = next_char(text, i);
    inside ? append_lower(out, text, start, i, c) : append_mapped(out, kToTitle, c);
    inside = is_cased(c);
  }
  return out;
}

std::string to_swapped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const uint32_t c = next_char(text, i);
    if (in_class(kUpper, c))
      append_lower(out, text, start, i, c);
    else
      append_mapped(out, in_class(kLower, c) ? kToUpper : CaseMap{}, c);
  }
  return out;
}

std::string_view strip_left(std::string_view text, const std::string_view* chars) {
  size_t at = 0;
  while (at < text.size()) {
    size_t next = at;
    if (!to_strip(next_char(text, next), chars)) break;
    at = next;
  }
  return text.substr(at);
}

std::string_view strip_right(std::string_view text, const std::string_view* chars) {
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (uint8_t(text[start]) & 0xC0) == 0x80) start--;
    size_t at = start;
    if (!to_strip(next_char(text, at), chars)) break;
    text = text.substr(0, start);
  }
  return text;
}

size_t find_text(std::string_view text, std::string_view what, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (what.empty()) return from;
  // memmem is linear (two-way); std::string_view::find is quadratic on hostile text.
  const void* hit = memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return hit ? size_t(static_cast<const char*>(hit) - text.data()) : std::string_view::npos;
}

}  // namespace mettle::jinja
