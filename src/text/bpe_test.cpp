#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace mettle {
namespace {

// The letters a to d and random merges of what is there already.
struct RandomModel {
  explicit RandomModel(unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::string> texts = {"a", "b", "c", "d"};
    for (int32_t i = 0; i < 4; ++i) {
      table.add(i, texts[i], true);
      options.start[static_cast<uint8_t>('a' + i)] = {1, false, {i, -1}};
    }
    while (merges.size() < 60) {
      const auto left = static_cast<int32_t>(random() % texts.size()),
                 right = static_cast<int32_t>(random() % texts.size());
      const std::string joined = texts[left] + texts[right];
      if (joined.size() > 12) continue;
      int32_t result = table.find(joined);
      if (result < 0) {
        result = static_cast<int32_t>(texts.size());
        table.add(result, joined, true);
        texts.push_back(joined);
      }
      merges.push_back({left, right, result});  // two ways to one token, and one pair twice, happen as well
    }
  }

  // The definition: of all neighbours that merge take the pair of lowest rank, leftmost first; start again.
  std::vector<int32_t> by_definition(const std::string& word) const {
    std::map<std::pair<int32_t, int32_t>, std::pair<size_t, int32_t>> rank;
    for (size_t i = 0; i < merges.size(); ++i) rank[{merges[i].left, merges[i].right}] = {i, merges[i].result};
    std::vector<int32_t> ids;
    for (const char c : word) ids.push_back(c - 'a');
    for (;;) {
      size_t best = ids.size();
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = rank.find({ids[i], ids[i + 1]});
        if (found == rank.end()) continue;
        if (best == ids.size() || found->second.first < rank.at({ids[best], ids[best + 1]}).first) best = i;
      }
      if (best == ids.size()) return ids;
      ids[best] = rank.at({ids[best], ids[best + 1]}).second;
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
  }

  TokenTable table;
  std::vector<Bpe::Merge> merges;
  Bpe::Options options;
};

TEST(Bpe, EqualsItsDefinitionForShortAndLongWords) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const RandomModel model(seed);
    const Bpe bpe(model.table, model.merges, model.options);
    BpeScratch scratch;
    std::mt19937 random(seed);
    for (const size_t length : {1, 2, 3, 8, 29, 30, 31, 39, 40, 41, 42, 100, 400}) {
      for (int i = 0; i < 40; ++i) {
        std::string word;
        const unsigned letters = 1 + random() % 4;
        while (word.size() < length) word.push_back(static_cast<char>('a' + random() % letters));
        std::vector<int32_t> ids;
        bpe.encode(word, scratch, ids);
        EXPECT_EQ(ids, model.by_definition(word)) << word;
        ids.clear();
        bpe.encode(word, scratch, ids);  // from the cache where it fits
        EXPECT_EQ(ids, model.by_definition(word)) << word;
      }
    }
  }
}

TEST(Bpe, AWordOfThreeMillionBytes) {
  const RandomModel model(3);
  const Bpe bpe(model.table, model.merges, model.options);
  BpeScratch scratch;
  std::mt19937 random(1);
  std::string word;
  while (word.size() < 3'000'000) word.push_back(static_cast<char>('a' + random() % 4));
  std::vector<int32_t> ids;
  bpe.encode(word, scratch, ids);
  std::string joined;
  for (const int32_t id : ids) joined += model.table.bytes(id);
  EXPECT_EQ(joined, word);
  EXPECT_LT(ids.size(), word.size());
}

TEST(Bpe, AllowedKeepsIdsOut) {
  const RandomModel model(5);
  std::vector<uint8_t> allowed(model.table.size(), 1);
  const int32_t first = model.merges[0].result;
  allowed[first] = 0;
  const std::string word(model.table.bytes(first));
  BpeScratch scratch, other;
  std::vector<int32_t> with, without;
  Bpe(model.table, model.merges, model.options).encode(word, scratch, with);
  Bpe(model.table, model.merges, model.options, allowed).encode(word, other, without);
  EXPECT_EQ(with, std::vector<int32_t>{first});
  EXPECT_EQ(std::count(without.begin(), without.end(), first), 0);
  std::string joined;
  for (const int32_t id : without) joined += model.table.bytes(id);
  EXPECT_EQ(joined, word);
}

TEST(TokenTable, RefusesTakenIdsAndTexts) {
  TokenTable table;
  EXPECT_TRUE(table.add(7, "seven", true));
  EXPECT_FALSE(table.add(7, "other", true));
  EXPECT_FALSE(table.add(8, "seven", true));
  EXPECT_TRUE(table.add(9, "seven", false));  // not findable: the first keeps its text
  EXPECT_EQ(table.find("seven"), 7);
  EXPECT_EQ(table.find("other"), -1);
  EXPECT_EQ(table.bytes(9), "seven");
  EXPECT_EQ(table.bytes(8), "");
  EXPECT_EQ(table.bytes(-1), "");
  EXPECT_EQ(table.bytes(1000), "");
  EXPECT_EQ(table.size(), 10);
  EXPECT_EQ(TokenTable().find("x"), -1);
}

TEST(TokenTable, FindsEachOfManyTexts) {
  TokenTable table;
  for (int32_t i = 0; i < 50'000; ++i) ASSERT_TRUE(table.add(i, "t" + std::to_string(i * 7919), true));
  for (int32_t i = 0; i < 50'000; ++i) ASSERT_EQ(table.find("t" + std::to_string(i * 7919)), i);
  EXPECT_EQ(table.find("t1"), -1);
}

}  // namespace
}  // namespace mettle
