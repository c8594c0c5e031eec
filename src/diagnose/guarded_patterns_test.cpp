#include "diagnose/guarded_patterns.h"

#include <gtest/gtest.h>

#include <string>

namespace mettle::diagnose {
namespace {

// For each pattern one text of each of its choices.
const std::vector<std::pair<Guard, std::vector<std::string>>>& matches() {
  static const std::vector<std::pair<Guard, std::vector<std::string>>> all = {
      {Guard::kEcho,
       {"Received request chat", "prompt: '", "messages=[", "content\" : \"", "input_text='", "text: [", "user = \"",
        "obj=EmbedGenerateReqInput"}},
      {Guard::kRemark,
       {"Hint: ",  "> tip ",        "NOTE: ",        "notes ",       "usage: ",          "help ",         "example: ",
        "doc ",    "docs ",         "if you see x",  "If you hit y", "if you run into ", "a known issue", "no ",
        "No",      "(no) ",         "no two words ", "without ",     "never ",           "zero ",         "avoids ",
        "avoid ",  "prevents ",     "fix ",          "fixed ",       "fixes ",           "simulated ",    "grepping ",
        "grep ",   "watching for ", "look for ",     "looking for ", "search for ",      "checks for ",   "in case of ",
        "unlike ", "such as ",      "about ",        "mentions "}},
      {Guard::kHandled,
       {"falling back", "fall back", "fallback to x", "Skipping", "skipped", "retrying", "will retry", "retry 3",
        "ignored", "ignoring", "recovered", "disabling"}},
      {Guard::kProbing, {"skipping tactic", "while profiling", "Tactic 7 of 9 failed", "tactic x skipped"}},
      {Guard::kNamedRank, {"rank 3", "local_rank: 0", "RANK=12", "TP0 died", "tp17", "a TP9"}},
  };
  return all;
}

TEST(GuardedPatterns, EachChoiceIsFoundAsByItsPatternAlone) {
  GuardedPatterns patterns;
  for (const auto& [guard, texts] : matches())
    for (const std::string& text : texts)
      for (const std::string& line : {text, "x: " + text, text + "\t", "ERROR [1] ) " + text, text + text})
        for (const auto& [other, unused] : matches()) {
          const std::string whole = line + " and more behind the part";
          patterns.begin(whole);
          const bool expected = pattern_of(other).search(line);
          EXPECT_EQ(patterns.search(other, line), expected) << line << " " << static_cast<int>(other);
          if (other == guard && line == text) {
            EXPECT_TRUE(expected) << text;
          }
        }
}

TEST(GuardedPatterns, GroupsAreThoseOfThePattern) {
  GuardedPatterns patterns;
  const std::string line = "worker of rank 12 ended";
  patterns.begin(line);
  std::vector<std::string_view> groups;
  ASSERT_TRUE(patterns.search(Guard::kNamedRank, line, &groups));
  EXPECT_EQ(groups[1], "12");
}

// Words put together at random, beside separators of all kinds.
TEST(GuardedPatterns, AgreesOnRandomLines) {
  std::vector<std::string> words = {"x", "n", "o", "ON", "no", "nO", "now", "_no", "no_", "error", "CUDA", "7", "é"};
  for (const auto& [guard, texts] : matches()) words.insert(words.end(), texts.begin(), texts.end());
  const std::vector<std::string> separators = {" ", "", ": ", "\t", "=", "-", "_", "'", "\xff", "(", "  "};
  GuardedPatterns patterns;
  uint64_t state = 1;
  const auto draw = [&](size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(state >> 33) % n;
  };
  size_t found = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string line;
    for (size_t n = 1 + draw(5); n > 0; --n) line += words[draw(words.size())] + separators[draw(separators.size())];
    const std::string part = line.substr(0, draw(line.size() + 1));
    patterns.begin(line);
    for (const auto& [guard, texts] : matches()) {
      const bool expected = pattern_of(guard).search(part);
      found += expected ? 1 : 0;
      ASSERT_EQ(patterns.search(guard, part), expected) << part << " " << static_cast<int>(guard);
    }
  }
  EXPECT_GT(found, 10'000u);
}

}  // namespace
}  // namespace mettle::diagnose
