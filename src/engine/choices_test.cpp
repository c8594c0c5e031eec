#include "engine/choices.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/test_support.h"

namespace mettle {
namespace {

// Another backend of join from four rows on; `careless` does not repeat itself.
const Backend<JoinOp> kFew{.name = "few"}, kMany{.name = "many"},
    kCareless{.name = "careless", .numerics = {.deterministic = false}};

class TwoBackends : public testing::UnprovedChoices {
 public:
  explicit TwoBackends(const Backend<JoinOp>* many) : many_(many) {}
  Choices<JoinOp> choose(const JoinProblem&) override {
    Choices<JoinOp> choices;
    for (size_t b = 0; b < kRowBuckets.size(); ++b) {
      choices.by_bucket[b].backend = kRowBuckets[b] < 16 ? &kFew : many_;
      choices.behind[b] = {{&kCareless, {}}, {&kFew, {}}};
    }
    return choices;
  }

 private:
  const Backend<JoinOp>* many_;
};

Choices<JoinOp> chosen(Repeats repeats, const Backend<JoinOp>* many = &kMany) {
  return EngineChoices(std::make_shared<TwoBackends>(many), repeats).choose(JoinProblem{.hidden = 64, .ranks = 1});
}

TEST(EngineChoices, OneChoiceServesEveryRowCountWhereAsked) {
  EXPECT_EQ(chosen(Repeats::kNotAsked).at(500).backend, &kMany);
  EXPECT_EQ(chosen(Repeats::kOneChoice).at(500).backend, &kFew);
  EXPECT_EQ(chosen(Repeats::kOneChoice).at(1).backend, &kFew);
}

TEST(EngineChoices, StepsOfOneShapeKeepTheirChoices) {
  EXPECT_EQ(chosen(Repeats::kOneShape).at(500).backend, &kMany);
  EXPECT_EQ(chosen(Repeats::kOneShape).at(1).backend, &kFew);
}

TEST(EngineChoices, WhatDoesNotRepeatItselfIsRefusedAndNotKeptBehind) {
  EXPECT_EQ(chosen(Repeats::kNotAsked, &kCareless).behind[6].size(), 2u);
  EXPECT_EQ(chosen(Repeats::kOneShape).behind[6].size(), 1u);
  EXPECT_EQ(chosen(Repeats::kOneChoice).behind[6].size(), 1u);
  EXPECT_NO_THROW(chosen(Repeats::kOneChoice, &kCareless));  // it does not serve then
  EXPECT_THROW(chosen(Repeats::kOneShape, &kCareless), Error);
}

}  // namespace
}  // namespace mettle
