#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace mettle {
namespace {

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::from_file(METTLE_SOURCE_DIR "/models/mettle-tiny/tokenizer.json");
  return tokenizer;
}

// Every prefix: what was pushed so far and then finished is the decoding of the prefix, and each part is whole text.
void check_prefixes(const std::vector<int32_t>& ids, bool skip_special) {
  for (size_t n = 0; n <= ids.size(); ++n) {
    Detokenizer detokenizer(tiny(), skip_special);
    std::string text;
    for (size_t i = 0; i < n; ++i) {
      const std::string part = detokenizer.push(ids[i]);
      EXPECT_EQ(unicode::invalid_utf8_at(part), std::nullopt) << testing::PrintToString(part);
      text += part;
    }
    text += detokenizer.finish();
    EXPECT_EQ(text, tiny().decode(std::span(ids).first(n), skip_special));
    EXPECT_EQ(detokenizer.finish(), "");
  }
}

TEST(Detokenizer, AllPrefixesOfTextWithSplitCharacters) {
  const std::string text =
      "<|im_start|>Grüße 你好 🙂👩‍🚀 \xF0\x9F\x98\x80é<think>हिन्दी</think><|im_end|>";
  const std::vector<int32_t> ids = tiny().encode(text);
  EXPECT_EQ(tiny().decode(ids, false), text);
  check_prefixes(ids, false);
  check_prefixes(ids, true);
}

TEST(Detokenizer, AllPrefixesOfRandomIds) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 40; ++i) {
      // bytes on their own (many of them no UTF-8), any token, ids out of range
      const int32_t any = static_cast<int32_t>(random() % static_cast<unsigned>(tiny().vocab_size() + 8)) - 4;
      ids.push_back(random() % 2 ? static_cast<int32_t>(random() % 256) : any);
    }
    check_prefixes(ids, round % 2);
  }
}

TEST(Detokenizer, HoldsBackOnlyWhatMayStillBecomeACharacter) {
  std::vector<int32_t> bytes;
  for (const char c : std::string("\xE4\xBD\xA0\xE4\x41")) bytes.push_back(*tiny().id_of({&c, 1}));
  Detokenizer detokenizer(tiny(), false);
  EXPECT_EQ(detokenizer.push(bytes[0]), "");
  EXPECT_EQ(detokenizer.push(bytes[1]), "");
  EXPECT_EQ(detokenizer.push(bytes[2]), "你");
  EXPECT_EQ(detokenizer.push(bytes[3]), "");
  EXPECT_EQ(detokenizer.push(bytes[4]),
            "\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(detokenizer.push(bytes[3]), "");
  EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace mettle
