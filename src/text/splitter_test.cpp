#include "text/splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "text/unicode.h"

namespace mettle {
namespace {

using testing::HasSubstr;

std::vector<std::string> pieces(const Splitter& splitter, std::string_view text) {
  std::vector<Piece> matches;
  splitter.find(text, matches);
  std::vector<std::string> found;
  for (const Piece& m : matches) found.emplace_back(text.substr(m.begin, m.end - m.begin));
  return found;
}

const std::string_view kKnown[] = {patterns::kQwen2,       patterns::kQwen35,        patterns::kLlama3,
                                   patterns::kDeepSeekCjk, patterns::kDeepSeekWords, patterns::kDeepSeekNumbers,
                                   patterns::kDigit,       patterns::kDigits};

// Text that visits every branch of the patterns; characters newer than PCRE2's tables are left out.
class RandomText {
 public:
  explicit RandomText(unsigned seed) : random_(seed) {
    std::string all;
    for (uint32_t c = 0; c < 0x110000; ++c) {
      if (c < 0xD800 || c > 0xDFFF) unicode::append_utf8(all, c);
    }
    std::vector<Piece> assigned;
    make_regex_splitter(R"([^\p{Cn}])", "test")->find(all, assigned);
    for (const Piece& p : assigned) characters_.push_back(all.substr(p.begin, p.end - p.begin));
  }

  std::string next() {
    static const char* const kPieces[] = {
        "'s",     "'S",     "'\u017f",    "'t",     "'re",    "'RE",    "'ve",    "'m",     "'ll",    "'lL",
        "'l",     "'d",     "'",          "''",     " ",      " ",      "  ",     "\t",     "\n",     "\r",
        "\r\n",   "\n\n",   "\u00a0",     "\u3000", "\u0085", "\u2028", "\u180e", "a",      "Z",      "word",
        "7",      "42",     "1234567",    "\u0664", "\u00bd", "\u2167", "-",      ".",      "!?",     "$",
        "+",      "\u20ac", "\u201c",     "\u0301", "\u0903", "\u20dd", "\u4e00", "\u9fa5", "\u9fa6", "\u3042",
        "\u30ab", "\u3400", "\U0001F600", "\u200d", "\ufe0f", "\u00ad", "\ue000", "\x01",   "\x7f",   "[",
        "]",      "\\",     "^",          "_",      "`",      "{",      "~"};
    std::string text;
    for (size_t n = random_() % 14; n > 0; --n) {
      text += random_() % 4 ? std::string(kPieces[random_() % std::size(kPieces)])
                            : characters_[random_() % characters_.size()];
    }
    return text;
  }

 private:
  std::mt19937 random_;
  std::vector<std::string> characters_;
};

TEST(Splitter, KnownPatternsEqualTheRegexOnRandomText) {
  RandomText texts(20261129);
  for (const std::string_view pattern : kKnown) {
    const auto hand = make_known_splitter(pattern);
    ASSERT_NE(hand, nullptr);
    EXPECT_EQ(hand->method(), "hand-written");
    const auto regex = make_regex_splitter(std::string(pattern), "test");
    EXPECT_EQ(regex->method(), "pcre2");
    int different = 0;
    for (int i = 0; i < 30'000 && different < 5; ++i) {
      const std::string text = texts.next();
      std::vector<Piece> a, b;
      hand->find(text, a);
      regex->find(text, b);
      if (a != b) ++different, ADD_FAILURE() << pattern << " on " << testing::PrintToString(text);
    }
  }
}

TEST(Splitter, KnownPatternsEqualTheRegexOnEveryCharacterInContext) {
  for (const std::string_view pattern : kKnown) {
    const auto hand = make_known_splitter(pattern);
    const auto regex = make_regex_splitter(std::string(pattern), "test");
    for (uint32_t c = 0; c < 0x3000; ++c) {
      if (c == 0x897 || c == 0x1C89 || c == 0x1C8A) continue;  // Unicode 16
      std::string x, text;
      unicode::append_utf8(x, c);
      for (const char* context : {"", "a", "1", " ", "\n", "-", "'"}) text += context + x + x + context;
      std::vector<Piece> a, b;
      hand->find(text, a);
      regex->find(text, b);
      // Characters that PCRE2 does not know yet (Unicode 15 and 16) have a class here only.
      std::vector<Piece> unknown;
      if (a != b) make_regex_splitter(R"(\p{Cn})", "test")->find(x, unknown);
      EXPECT_TRUE(a == b || !unknown.empty()) << pattern << " U+" << std::hex << c;
    }
  }
}

TEST(Splitter, PiecesByExample) {
  using V = std::vector<std::string>;
  const auto qwen2 = make_splitter(std::string(patterns::kQwen2), "test");
  EXPECT_EQ(pieces(*qwen2, "It's  20 cafe\u0301!\n\n x"),
            (V{"It", "'s", " ", " ", "2", "0", " cafe", "\u0301!\n\n", " x"}));
  const auto qwen35 = make_splitter(std::string(patterns::kQwen35), "test");
  EXPECT_EQ(pieces(*qwen35, "cafe\u0301!  "), (V{"cafe\u0301", "!", "  "}));
  const auto llama3 = make_splitter(std::string(patterns::kLlama3), "test");
  EXPECT_EQ(pieces(*llama3, "12345 a \n b"), (V{"123", "45", " a", " \n", " b"}));
  EXPECT_EQ(pieces(*qwen2, ""), V{});
  EXPECT_EQ(pieces(*make_literal_splitter("ab"), "ababxab"), (V{"ab", "ab", "ab"}));
}

TEST(Splitter, OtherPatternsGoToPcre2) {
  EXPECT_EQ(make_splitter(R"(\p{L}+)", "test")->method(), "pcre2");
  EXPECT_EQ(make_splitter(std::string(patterns::kGpt2), "test")->method(), "pcre2");
  EXPECT_EQ(make_known_splitter(R"(\p{L}+)"), nullptr);
}

TEST(Splitter, RewritesWhatOnigurumaReadsDifferently) {
  EXPECT_EQ(pcre2_pattern(R"(\s|[^\s\d])", "t"), R"([\p{Z}\t-\r\x{85}]|[^\p{Z}\t-\r\x{85}\d])");
  EXPECT_EQ(pcre2_pattern(R"(\S\h\u00e9)", "t"), R"([^\p{Z}\t-\r\x{85}][0-9A-Fa-f]\x{00e9})");
  EXPECT_EQ(pcre2_pattern(R"(\p{N}{1,3}+(a|b){2}?x{,4})", "t"), R"((?:\p{N}{1,3})+(?:(a|b){2})?x{0,4})");
}

TEST(Splitter, RefusesPatternsByName) {
  struct {
    std::string pattern, message;
  } const cases[] = {
      {"(", "missing closing parenthesis"},
      {"a)", "a ')' too many at byte 1"},
      {"[a-z&&[^b]]", "the set operation &&"},
      {"[a[b]]", "a set within a set"},
      {"[a", "an unfinished set"},
      {"[[:alpha", "an unfinished [: :]"},
      {R"(\bword)", "a word boundary"},
      {R"([\S])", "a negated class within a set"},
      {R"(\Kx)", R"(\K)"},
      {R"(\u12)", "\\u without four digits"},
      {R"(\p{L)", "an unfinished { }"},
      {R"(\p{Nonsense})", "unknown property"},
      {"x\\", "a backslash at the end"},
      {"(?m)x", "the option m"},
      {"(*LIMIT_MATCH=1)x", "a verb"},
      {std::string(300, '(') + std::string(300, ')'), "groups nested deeper than 200"},
      {std::string(70'000, 'a'), "may have 65536 bytes, got 70000"},
  };
  for (const auto& c : cases) {
    try {
      make_splitter(c.pattern, "pre_tokenizer.pattern");
      ADD_FAILURE() << "accepted " << c.pattern.substr(0, 40);
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kBadModel);
      EXPECT_THAT(e.message, HasSubstr("pre_tokenizer.pattern: "));
      EXPECT_THAT(e.message, HasSubstr(c.message));
    }
  }
}

TEST(Splitter, APatternThatExplodesGivesUp) {
  struct {
    const char* pattern;
    size_t letters;
    std::string message;
  } const cases[] = {{"(?:a?){28}a{28}[bc]", 40, "match limit exceeded at byte 0 of 40"},  // 2^28 ways
                     {"(a|aa)+$x|(a*)*b", 5000, "at byte 0 of 5000"}};
  for (const auto& c : cases) {
    std::vector<Piece> matches;
    try {
      make_splitter(c.pattern, "test")->find(std::string(c.letters, 'a'), matches);
      ADD_FAILURE() << c.pattern << " came to an end";
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kInvalidRequest);
      EXPECT_THAT(e.message, HasSubstr("the tokenizer's pattern must split it"));
      EXPECT_THAT(e.message, HasSubstr(c.message));
    }
  }
}

TEST(Splitter, LongRunsInOnePiece) {
  const size_t n = 3'000'000;
  for (const std::string_view pattern : {patterns::kQwen35, patterns::kDeepSeekWords, patterns::kGpt2}) {
    for (const char c : {'a', ' ', '\n', '-'}) {
      std::vector<Piece> matches;
      make_splitter(std::string(pattern), "test")->find(std::string(n, c), matches);
      EXPECT_EQ(matches, (std::vector<Piece>{{0, n}})) << pattern << " on " << int{c};
    }
  }
}

}  // namespace
}  // namespace mettle
