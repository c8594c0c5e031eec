#include "text/unicode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "text/splitter.h"
#include "text/unicode_normalize.h"

namespace mettle::unicode {
namespace {

std::string utf8(std::initializer_list<uint32_t> codes) {
  std::string text;
  for (const uint32_t c : codes) append_utf8(text, c);
  return text;
}
std::string lossy(std::string_view bytes) {
  std::string out;
  append_lossy(bytes, /*last=*/true, out);
  return out;
}

// The generated table knows Unicode 16; PCRE2's may be older or newer. Where both know a character they must agree.
TEST(UnicodeTable, DiffersFromPcre2OnlyWhereOneDoesNotKnowTheCharacter) {
  struct {
    const char* pattern;
    uint8_t mask;
  } const classes_of[] = {{R"(\p{L})", kLetter},
                          {R"(\p{N})", kNumber},
                          {R"(\p{M})", kMark},
                          {R"(\p{P})", kPunct},
                          {R"(\p{S})", kSymbol},
                          {R"(\s)", kSpace},
                          {R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])", kWord}};
  const auto members = [](const std::string& pattern) {
    std::vector<bool> found(0x110000);
    std::string all;
    for (uint32_t c = 0; c < 0x110000; ++c) {
      if (c < 0xD800 || c > 0xDFFF) append_utf8(all, c);
    }
    std::vector<Piece> matches;
    make_regex_splitter(pattern, "test")->find(all, matches);
    for (const Piece& m : matches) found[decode(all.data() + m.begin).code] = true;
    return found;
  };
  const std::vector<bool> unassigned = members(R"([\p{Cn}\p{Co}\p{Cs}])");
  int newer = 0, agreed = 0;
  for (const auto& [pattern, mask] : classes_of) {
    const std::vector<bool> theirs = members(pattern);
    for (uint32_t c = 0; c < 0x110000; ++c) {
      const uint8_t ours = classes()[c] & ~kNotNfc;
      if (((ours & mask) != 0) == theirs[c]) {
        agreed += theirs[c];
        continue;
      }
      EXPECT_TRUE(unassigned[c] || ours == 0) << pattern << " U+" << std::hex << c;
      ++newer;
    }
  }
  EXPECT_GT(agreed, 270'000);  // members of classes, counted once a class; Unicode 14 has 287,000
  EXPECT_LT(newer, 25'000);    // 20,000 between Unicode 14 and 16, nearly all Han
  // Letters of Unicode 15 and 16 are letters here; one of 17 is not yet.
  EXPECT_EQ(classes()[0x31350] & kLetter, kLetter);
  EXPECT_EQ(classes()[0x105C0] & kLetter, kLetter);
  EXPECT_EQ(classes()[0x323B0], 0);
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(invalid_utf8_at(""), std::nullopt);
  EXPECT_EQ(invalid_utf8_at("plain text of more than eight bytes"), std::nullopt);
  EXPECT_EQ(invalid_utf8_at(utf8({0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF})), std::nullopt);
  struct {
    std::string_view text;
    size_t at;
  } const cases[] = {
      {"\x80", 0},          {"abcdefghi\xFF", 9},    {"\xC0\x80", 0},         {"\xC1\xBF", 0},    {"\xE0\x9F\xBF", 0},
      {"a\xED\xA0\x80", 1}, {"\xF0\x8F\xBF\xBF", 0}, {"\xF4\x90\x80\x80", 0}, {"\xF5\x80", 0},    {"ok\xE4\xBD", 2},
      {"\xC3", 0},          {"\xF0\x9F\x98", 0},     {"\xC3\xA9\xC3", 2},     {"\xE4\xBD\x41", 0}};
  for (const auto& c : cases) EXPECT_EQ(invalid_utf8_at(c.text), c.at) << c.text;
}

TEST(Utf8, LossyReplacesEachLongestInvalidStretchOnce) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(lossy("a\xFF\xFE z"), "a" + bad + bad + " z");
  EXPECT_EQ(lossy("\xF0\x9F\x98"), bad);
  EXPECT_EQ(lossy("\xE4\xBD\x41"), bad + "A");
  EXPECT_EQ(lossy("\xED\xA0\x80"), bad + bad + bad);
  EXPECT_EQ(lossy("\xF0\x80\x80"), bad + bad + bad);
  EXPECT_EQ(lossy("\xC3\xA9"), "\xC3\xA9");
  std::string out;
  EXPECT_EQ(append_lossy("ab\xE4\xBD", /*last=*/false, out), 2u);
  EXPECT_EQ(out, "ab");
}

TEST(Normalize, KnownForms) {
  EXPECT_EQ(normalize("e\xCC\x81", Form::kNfc), "\xC3\xA9");
  EXPECT_EQ(normalize("\xC3\xA9", Form::kNfd), "e\xCC\x81");
  EXPECT_EQ(normalize(utf8({0x212B}), Form::kNfc), utf8({0xC5}));
  EXPECT_EQ(normalize(utf8({0xFB01}), Form::kNfkc), "fi");
  EXPECT_EQ(normalize(utf8({0x1E9B, 0x323}), Form::kNfkd), utf8({0x73, 0x323, 0x307}));
  EXPECT_EQ(normalize(utf8({0x1100, 0x1161, 0x11A8}), Form::kNfc), utf8({0xAC01}));
  EXPECT_EQ(normalize(utf8({0xAC00, 0x11A8}), Form::kNfc), utf8({0xAC01}));
  EXPECT_EQ(normalize(utf8({'x', 0x345, 0x301, 0x316}), Form::kNfc), utf8({'x', 0x316, 0x301, 0x345}));
  EXPECT_EQ(normalize(utf8({0x301, 'a'}), Form::kNfc), utf8({0x301, 'a'}));
  EXPECT_EQ(normalize("", Form::kNfc), "");
  // The reference library's NFC knows Unicode 9: U+09FE (11) is no mark to it, so nothing moves around it.
  EXPECT_EQ(normalize(utf8({0x9FE, 0x9BC}), Form::kNfc), utf8({0x9FE, 0x9BC}));
}

TEST(Normalize, IsIdempotentAndKeepsWhatNfcCannotTouch) {
  std::mt19937 random(7);
  const uint32_t pool[] = {'a',    'e',    ' ',   0xE9,  0x300, 0x301,  0x316,  0x323,   0x345, 0x1100, 0x1161,
                           0x11A8, 0xAC00, 0x915, 0x93C, 0x958, 0x4E00, 0x212B, 0x1F600, 0x9C7, 0x9BE};
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) append_utf8(text, pool[random() % std::size(pool)]);
    const std::string once = normalize(text, Form::kNfc);
    EXPECT_EQ(normalize(once, Form::kNfc), once) << text;
    EXPECT_EQ(normalize(normalize(text, Form::kNfd), Form::kNfc), once) << text;
  }
}

TEST(Normalize, AMillionMarksOfFallingClass) {
  std::string text = "a";
  for (int i = 0; i < 500'000; ++i) text += utf8({i % 2 ? 0x316u : 0x301u});
  const std::string out = normalize(text, Form::kNfc);
  // The marks below (class 220) come first, then those above (230), the first of which joins the letter.
  EXPECT_EQ(out.substr(0, 4), utf8({0xE1, 0x316}));
  EXPECT_EQ(out.size(), text.size() - 1);
  EXPECT_EQ(out.substr(out.size() - 2), utf8({0x301}));
}

}  // namespace
}  // namespace mettle::unicode
