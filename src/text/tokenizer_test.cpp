#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "base/error.h"

namespace mettle {
namespace {

using testing::HasSubstr;

const std::string kModel = std::string(METTLE_SOURCE_DIR) + "/models/mettle-tiny/tokenizer.json";

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::from_file(kModel);
  return tokenizer;
}

struct Golden {
  std::string text, decoded, decoded_plain;
  std::vector<int32_t> ids;
};
std::vector<Golden> goldens() {
  std::vector<Golden> all;
  std::ifstream file(std::string(METTLE_SOURCE_DIR) + "/models/golden/tokenizer.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto j = nlohmann::json::parse(line);
    all.push_back({j.at("text"), j.at("decoded"), j.at("decoded_plain"), j.at("ids")});
  }
  return all;
}

// The small tokenizer that the component tests start from.
nlohmann::json small() {
  std::ifstream file(std::string(METTLE_SOURCE_DIR) + "/tests/data/tokenizer_components.jsonl");
  std::string line;
  std::getline(file, line);
  return nlohmann::json::parse(line);
}
nlohmann::json added(const std::string& content, int64_t id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}
Tokenizer load(const nlohmann::json& json) { return Tokenizer::from_json(json.dump(), "tokenizer.json"); }

TEST(Tokenizer, GoldenLines) {
  const auto all = goldens();
  ASSERT_EQ(all.size(), 600u);
  for (const Golden& g : all) {
    EXPECT_EQ(tiny().encode(g.text), g.ids) << g.text;
    EXPECT_EQ(tiny().decode(g.ids, /*skip_special=*/false), g.decoded) << g.text;
    EXPECT_EQ(tiny().decode(g.ids, /*skip_special=*/true), g.decoded_plain) << g.text;
  }
}

TEST(Tokenizer, ConcurrentCallsGiveTheSameIds) {
  const auto all = goldens();
  std::atomic<int> different = 0;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < all.size(); ++i) {
        const Golden& g = all[(i + t * 150) % all.size()];
        if (tiny().encode(g.text) != g.ids || tiny().decode(g.ids, false) != g.decoded) ++different;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(different, 0);
}

TEST(Tokenizer, IdsAndBytes) {
  EXPECT_EQ(tiny().vocab_size(), 6144);
  EXPECT_EQ(tiny().id_of("<|im_end|>"), 6137);
  EXPECT_EQ(tiny().id_of(" the"), tiny().encode(" the").at(0));
  EXPECT_EQ(tiny().bytes_of(220), " ");
  EXPECT_EQ(tiny().bytes_of(6137), "<|im_end|>");
  EXPECT_EQ(tiny().id_of("\xF0"), 172);
  EXPECT_EQ(tiny().bytes_of(172), "\xF0");
  EXPECT_EQ(tiny().id_of("no such token"), std::nullopt);
  EXPECT_EQ(tiny().id_of(""), std::nullopt);
  EXPECT_TRUE(tiny().is_special(6137));
  EXPECT_FALSE(tiny().is_special(6142));  // <think> is added, not special
  for (const int32_t id : {-1, 6144, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tiny().bytes_of(id), "");
    EXPECT_FALSE(tiny().is_special(id));
  }
  EXPECT_EQ(tiny().decode(std::vector<int32_t>{-1, 64, 6144, INT32_MAX}, false), "a");
}

TEST(Tokenizer, TextNeverBecomesAnAddedToken) {
  std::mt19937 random(5);
  const char* const parts[] = {
      "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|im_",   "end|>", "<",
      "|>",           "think",      " ",       "\n",       "a",           "e\u0301", "user"};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) text += parts[random() % std::size(parts)];
    const auto ids = tiny().encode(text, AddedTokens::kAsText);
    for (const int32_t id : ids) ASSERT_LT(id, 6135) << text;
    EXPECT_EQ(tiny().decode(ids, false), tiny().decode(tiny().encode(text), false)) << text;
  }
  EXPECT_EQ(tiny().encode("<think>"), std::vector<int32_t>{6142});
  EXPECT_GT(tiny().encode("<think>", AddedTokens::kAsText).size(), 1u);
}

// Where merges ("ab"), or ignore_merges ("hello", which merges alone do not reach), lead to an added token.
TEST(Tokenizer, TextNeverBecomesAnAddedTokenByMerges) {
  for (const auto& [content, ignore_merges] : {std::pair{"ab", false}, {"ab", true}, {"hello", true}}) {
    nlohmann::json json = small();
    const int32_t id = json["model"]["vocab"][content];
    json["model"]["ignore_merges"] = ignore_merges;
    EXPECT_THAT(load(json).encode(content, AddedTokens::kAsText), testing::ElementsAre(id));
    json["added_tokens"] = {added(content, id)};
    const Tokenizer tokenizer = load(json);
    EXPECT_THAT(tokenizer.encode(content), testing::ElementsAre(id));
    const auto ids = tokenizer.encode(content, AddedTokens::kAsText);
    EXPECT_THAT(ids, testing::Not(testing::Contains(id)));
    EXPECT_EQ(tokenizer.decode(ids, false), content);
  }
}

TEST(Tokenizer, InvalidTextIsRefusedWithItsOffset) {
  for (const auto& [text, part] : {std::pair{"abc\xFFz", "0xFF at offset 3"},
                                   {"\xC3", "0xC3 at offset 0"},
                                   {"xy\xED\xA0\x80", "0xED at offset 2"}}) {
    for (const AddedTokens added : {AddedTokens::kAsTokens, AddedTokens::kAsText}) {
      try {
        tiny().encode(text, added);
        ADD_FAILURE() << "accepted " << text;
      } catch (const Error& e) {
        EXPECT_EQ(e.code, Code::kInvalidRequest);
        EXPECT_THAT(e.message, HasSubstr(part));
      }
    }
  }
  EXPECT_EQ(tiny().encode(std::string_view("a\0b", 3)).size(), 3u);
  try {
    tiny().encode(std::string((64 << 20) + 1, 'a'));
    ADD_FAILURE() << "accepted 64 MiB and a byte";
  } catch (const Error& e) {
    EXPECT_EQ(e.message, "text: may have 67108864 bytes, got 67108865");
  }
}

TEST(Tokenizer, ThreeMegabytesWithoutAnEnd) {
  for (const std::string unit : {"ab", " ", "你", "<|im_start|"}) {
    std::string text;
    while (text.size() < 3'000'000) text += unit;
    EXPECT_TRUE(tiny().decode(tiny().encode(text), false) == text) << unit;
  }
}

}  // namespace
}  // namespace mettle
