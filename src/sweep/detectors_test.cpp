#include "sweep/detectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mettle::sweep {
namespace {

std::string cause(const std::optional<Finding>& finding) { return finding ? finding->cause : ""; }

TEST(Detectors, MarksAreNanLogits) {
  EXPECT_EQ(cause(find_garbage(std::string(48, '!'))), "NAN_LOGITS");
  EXPECT_EQ(cause(find_garbage("! ! ! ! ! ! ! !")), "NAN_LOGITS");
  EXPECT_EQ(cause(find_garbage("!!!!!!!!!!!!!!!!!!!a")), "NAN_LOGITS");
}

TEST(Detectors, WhatAPersonMayWriteIsNoGarbage) {
  for (const char* text : {"", "!", "Yes!!!", "42", "Paris.", "----\nA table\n----", "...", "aaaaaaaaaaaaaaaaaaaa",
                           "\xE6\x9D\xB1\xE4\xBA\xAC\xE6\x9D\xB1\xE4\xBA\xAC", "100000000000000"})
    EXPECT_EQ(cause(find_garbage(text)), "") << text;
}

TEST(Detectors, BytesThatAreNoTextAreGarbage) {
  EXPECT_EQ(cause(find_garbage("\x01\x02\x03 abc")), "GARBAGE");
  EXPECT_EQ(cause(find_garbage("\xEF\xBF\xBD\xEF\xBF\xBD of")), "GARBAGE");
  EXPECT_EQ(cause(find_garbage("one \xEF\xBF\xBD in a longer text that is otherwise quite fine")), "");
}

TEST(Detectors, RepetitionUntilTheEnd) {
  std::string loop = "The river ";
  for (int i = 0; i < 12; ++i) loop += "and the stone ";
  EXPECT_EQ(cause(find_repetition(loop)), "REPEATS");
  EXPECT_EQ(cause(find_repetition(std::string(24, 'a'))), "REPEATS");
}

TEST(Detectors, NearMissesOfRepetition) {
  EXPECT_EQ(cause(find_repetition("")), "");
  EXPECT_EQ(cause(find_repetition(std::string(23, 'a'))), "");                           // short
  EXPECT_EQ(cause(find_repetition("no no no no, said he, and went his way home")), "");  // not at the end
  EXPECT_EQ(cause(find_repetition("row, row, row your boat gently down the stream")), "");
  EXPECT_EQ(cause(find_repetition("He laughed: ha ha ha ha ha ha")), "");  // too few bytes
  EXPECT_EQ(cause(find_repetition("A long text first, about this and that, a river, a mill and its miller, and then he "
                                  "laughs: ha ha ha ha ha ha ha ha ha ha ha")),
            "");  // the smaller half
  EXPECT_EQ(cause(find_repetition("A long text first, about this and that, and then: ha ha ha ha ha")), "");
}

TEST(Detectors, LongTextsAreLookedAtInTime) {
  std::string text;
  for (int i = 0; i < 1 << 17; ++i) text += static_cast<char>('a' + (i * 7919 + i / 13) % 26);
  find_repetition(text);
  find_repetition(std::string(1 << 17, 'a') + "b");
}

TEST(Detectors, Logprobs) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(cause(find_bad_logprobs({})), "");
  EXPECT_EQ(cause(find_bad_logprobs({-0.5, 0.0, -9999.0})), "");
  EXPECT_EQ(cause(find_bad_logprobs({0.00005})), "");  // what rounding makes of 0
  EXPECT_EQ(cause(find_bad_logprobs({0.001})), "NONFINITE_LOGPROB");
  EXPECT_EQ(cause(find_bad_logprobs({-0.5, nan})), "NONFINITE_LOGPROB");
  EXPECT_EQ(cause(find_bad_logprobs({-inf})), "NONFINITE_LOGPROB");
  const auto in_decode = find_bad_logprobs({-0.5, std::nullopt, -0.5});
  ASSERT_TRUE(in_decode);
  EXPECT_NE(in_decode->sentence.find("token 2 of 3"), std::string::npos);
  EXPECT_NE(in_decode->sentence.find("in decode"), std::string::npos);
  EXPECT_EQ(find_bad_logprobs({std::nullopt})->sentence.find("in decode"), std::string::npos);
}

TEST(Detectors, ExpectedAnswers) {
  const auto wrong = [](const char* text, const char* answer, Match match) {
    return find_wrong_answer(text, {"q", answer, match, 1}).has_value();
  };
  EXPECT_FALSE(wrong(" 42\n", "42", Match::kExact));
  EXPECT_TRUE(wrong("42.", "42", Match::kExact));
  EXPECT_FALSE(wrong("42.", "42", Match::kPrefix));
  EXPECT_TRUE(wrong("It is 42", "42", Match::kPrefix));
  EXPECT_FALSE(wrong("It is 42", "42", Match::kContains));
  EXPECT_TRUE(wrong("", "42", Match::kContains));
}

TEST(Detectors, Agreement) {
  EXPECT_EQ(agreement("abcd", "abcd"), 1);
  EXPECT_EQ(agreement("abXX", "abcd"), 0.5);
  EXPECT_EQ(agreement("", "abcd"), 0);
  EXPECT_EQ(agreement("abcdefgh", "abcd"), 1);
  EXPECT_EQ(agreement("", ""), 1);
  EXPECT_EQ(agreement("abcd", ""), 0);
}

TEST(Detectors, NanOfPythonBecomesNullOutsideOfStrings) {
  EXPECT_EQ(without_nan(R"({"a": NaN, "b": [-Infinity, Infinity]})"), R"({"a": null, "b": [null, null]})");
  EXPECT_EQ(without_nan(R"({"a": "NaN \" NaN", "b": 1})"), R"({"a": "NaN \" NaN", "b": 1})");
  EXPECT_EQ(without_nan("\"\\"), "\"\\");
}

TEST(Detectors, QuotesAreCutAtCharacters) {
  EXPECT_EQ(in_quotes("a\x1b[1mb"), "\"a [1mb\"");
  EXPECT_EQ(in_quotes("\xC3\xA9\xC3\xA9", 3), "\"\xC3\xA9 ...\"");
}

}  // namespace
}  // namespace mettle::sweep
