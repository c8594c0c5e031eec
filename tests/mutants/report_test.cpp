// What the last lines of tests/mutants/run may claim.
#include "report.h"

#include <gtest/gtest.h>

namespace mettle::mutants {
namespace {

// `count` faults of an op, of which the naive check passes the first `naive`.
void add(Score& score, const std::string& op, int count, int naive) {
  for (int i = 0; i < count; ++i) {
    Result r{op, "fault" + std::to_string(i), "397b", {}, 0, 0, i < naive};
    r.verdict.code = VerdictCode::kWrongOutput;
    score.results.push_back(r);
  }
}

TEST(MutantsScore, SaysWhatIsMissing) {
  EXPECT_EQ(missing_faults({{"moe", 70}, {"linear", 70}}), "");
  EXPECT_EQ(missing_faults({{"moe", 128}, {"linear", 12}}), "");
  EXPECT_EQ(missing_faults({{"moe", 128}, {"linear", 11}, {"gdn", 12}}),
            "linear has 11 faults, at least 12 are asked for");
  EXPECT_EQ(missing_faults({{"moe", 127}, {"linear", 12}}), "there are 139 faults, at least 140 are asked for");
}

TEST(MutantsScore, HalfMustPassANaiveCheck) {
  Score score;
  add(score, "moe", 20, 10);
  EXPECT_TRUE(score.hard_to_see());
  EXPECT_TRUE(score.all_well());
  add(score, "linear", 1, 0);
  EXPECT_FALSE(score.hard_to_see());
}

// A fault that one geometry lets pass is not caught; a healthy backend that is convicted is a false alarm.
TEST(MutantsScore, EveryGeometryCounts) {
  Score score;
  add(score, "moe", 2, 1);
  Result again = score.results[0];
  again.geometry = "35b";
  again.verdict = {};
  score.results.push_back(again);
  EXPECT_EQ(score.faults(), 2u);
  EXPECT_EQ(score.caught(), 1u);
  EXPECT_EQ(score.naive(), 1u);
  EXPECT_FALSE(score.all_well());
  score.results.pop_back();
  EXPECT_TRUE(score.all_well());
  score.healthy.push_back({.op = "moe", .passed = false});
  EXPECT_EQ(score.false_alarms(), 1u);
  EXPECT_FALSE(score.all_well());
}

}  // namespace
}  // namespace mettle::mutants
