// Python's str methods on UTF-8: white space, character classes, case maps, splitting into characters and lines.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mettle::jinja {

struct Run {
  uint32_t first, last, stride;
};
struct CaseRun {
  uint32_t first, last, stride;
  int32_t delta;
};
struct CaseText {
  uint32_t from;
  const char* to;
};
struct CaseMap {
  std::span<const CaseRun> runs;
  std::span<const CaseText> texts;  // one character that becomes several
};

extern const std::span<const Run> kPrintable, kAlpha, kDecimal, kDigit, kNumeric, kLower, kUpper, kTitle,
    kCaseIgnorable;
extern const CaseMap kToUpper, kToLower, kToTitle, kToFolded;

bool in_class(std::span<const Run> runs, uint32_t c);
inline bool is_cased(uint32_t c) { return in_class(kLower, c) || in_class(kUpper, c) || in_class(kTitle, c); }
bool is_space(uint32_t c);  // str.isspace, which is also \s of Python's re

// The text must be valid UTF-8; `at` is moved behind the character.
uint32_t next_char(std::string_view text, size_t& at);
uint32_t last_char(std::string_view text);
void append_char(std::string& out, uint32_t c);
bool is_utf8(std::string_view text);  // without surrogates and overlong forms
size_t count_chars(std::string_view text);
std::vector<std::string_view> split_chars(std::string_view text);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// Byte offset of character `index`; the size of the text when it has no more than that many.
size_t byte_offset(std::string_view text, size_t index);

// The whole text, or its first `bytes` bytes (fewer when they cut a character) and "...".
std::string shortened(std::string_view text, size_t bytes);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);  // with the final sigma
std::string to_folded(std::string_view text);
std::string to_capitalized(std::string_view text);
std::string to_title(std::string_view text);
std::string to_swapped(std::string_view text);

// chars: the set to strip; nullptr is white space.
std::string_view strip_left(std::string_view text, const std::string_view* chars = nullptr);
std::string_view strip_right(std::string_view text, const std::string_view* chars = nullptr);

// First place of `what` at or behind `from`, in linear time; npos when there is none.
size_t find_text(std::string_view text, std::string_view what, size_t from = 0);

}  // namespace mettle::jinja
