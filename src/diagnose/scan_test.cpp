#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "base/error.h"
#include "diagnose/needle_scanner.h"
#include "diagnose/pattern.h"

namespace mettle::diagnose {
namespace {

std::vector<uint32_t> found(NeedleScanner& scanner, std::string_view line) {
  std::vector<NeedleHit> hits;
  scanner.scan(line, hits);
  std::vector<uint32_t> needles;
  for (const NeedleHit& hit : hits) needles.push_back(hit.needle);
  return needles;
}

TEST(NeedleScanner, FindsAllOnceInAnyCaseAndTellsWhereTheyEnd) {
  NeedleScanner scanner({"fisher", "her", "hers", "his", "out of memory"});
  using V = std::vector<uint32_t>;
  EXPECT_EQ(found(scanner, "fisHers"), (V{0, 1, 2}));
  EXPECT_EQ(found(scanner, "her her her"), (V{1}));
  EXPECT_EQ(found(scanner, ""), V{});
  EXPECT_EQ(found(scanner, "he"), V{});
  EXPECT_EQ(found(scanner, "h e r s out-of memory"), V{});
  EXPECT_EQ(found(scanner, std::string("\0\xff OUT OF MEMORY", 16)), (V{4}));
  std::vector<NeedleHit> hits;
  scanner.scan("it is out of memory.", hits);
  ASSERT_EQ(hits.size(), 1u);
  EXPECT_EQ(hits[0].end, 19u);
  EXPECT_THROW(NeedleScanner({"ab"}), Error);
}

TEST(NeedleScanner, AgreesWithASearchForEachNeedle) {
  const std::vector<std::string> needles{"aaa", "aba", "abab", "bab", "bba", "bbbb", "abba"};
  NeedleScanner scanner(needles);
  for (uint32_t bits = 0; bits < 4096; ++bits) {
    std::string line;
    for (uint32_t i = 0; i < 12; ++i) line += (bits >> i & 1) != 0 ? 'a' : 'b';
    std::vector<uint32_t> got = found(scanner, line);
    std::sort(got.begin(), got.end());
    std::vector<uint32_t> want;
    for (uint32_t i = 0; i < needles.size(); ++i)
      if (line.find(needles[i]) != std::string::npos) want.push_back(i);
    ASSERT_EQ(got, want) << line;
  }
}

TEST(NeedleScanner, MoreBytesThanColumnsStillAgree) {
  std::vector<std::string> needles;
  for (int c = 1; c < 256; ++c)
    if (std::isupper(c) == 0) needles.push_back(std::string(3, static_cast<char>(c)));
  NeedleScanner scanner(needles);
  for (uint32_t i = 0; i < needles.size(); ++i)
    EXPECT_EQ(found(scanner, "." + needles[i] + ","), (std::vector<uint32_t>{i}));
}

TEST(Pattern, GroupsAndCase) {
  const Pattern p(R"(tensor a \((\d+)\)(x)? of (\d+))");
  std::vector<std::string_view> g;
  EXPECT_TRUE(p.search("size of tensor a (3072) of 9", &g));
  ASSERT_EQ(g.size(), 4u);
  EXPECT_EQ(g[1], "3072");
  EXPECT_EQ(g[2], "");
  EXPECT_EQ(g[3], "9");
  EXPECT_FALSE(p.search("size of Tensor a (3072) of 9", &g));
  EXPECT_TRUE(g.empty());
  EXPECT_FALSE(Pattern().search("anything"));
}

TEST(Pattern, BadSourceIsToldWithItsPlace) {
  try {
    const Pattern p("a(b");
    FAIL() << "compiled";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kInternal);
    EXPECT_NE(e.message.find("pattern a(b: must be a regular expression, at byte 3"), std::string::npos) << e.message;
  }
}

TEST(Pattern, EndlessMatchingEndsWithoutAMatch) {
  const Pattern p("(a+a+)+b(?:c|d)*e");
  EXPECT_FALSE(p.search(std::string(5000, 'a')));
}

TEST(Pattern, RequiredLiteral) {
  EXPECT_EQ(Pattern::required_literal(R"(size_[nk] = \d+ is not divisible by tile)"), " is not divisible by tile");
  EXPECT_EQ(Pattern::required_literal(R"(\[Autotuner\]: Skipping)"), "[autotuner]: skipping");
  EXPECT_EQ(Pattern::required_literal("exit code:? -9"), "exit code");
  EXPECT_EQ(Pattern::required_literal("abcx*def"), "abc");
  EXPECT_EQ(Pattern::required_literal("ab{3}cd"), "cd");
  EXPECT_EQ(Pattern::required_literal("this|that"), "");
  EXPECT_EQ(Pattern::required_literal("(this|that) is (so)?"), " is ");
}

}  // namespace
}  // namespace mettle::diagnose
