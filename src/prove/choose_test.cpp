// What is chosen of proved tactics and their times.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "base/log.h"
#include "prove/candidates.h"

namespace mettle {
namespace {

const LinearProblem kProblem{.in = 128, .out = 100, .format = WeightFormat::kNvfp4};

// Planted backends: named by their layout, each with two tactics, and the reference.
std::vector<Tactic> two_tactics(const LinearProblem&, const Device&) {
  return {{"one", Isa::kScalar, 0}, {"two", Isa::kScalar, 1}};
}
Verdict supports_all(const LinearProblem&, const Device&) { return {}; }
Backend<LinearOp> planted(std::string_view name, Layout layout) {
  return {.name = name, .layout = layout, .supports = supports_all, .tactics = two_tactics};
}
const Backend<LinearOp> kTileA = planted("tile_a", Layout::kTile16), kTileB = planted("tile_b", Layout::kTile16),
                        kP64A = planted("p64_a", Layout::kP64), kP64B = planted("p64_b", Layout::kP64),
                        kReference = planted("reference", Layout::kTile16);
const std::vector<const Backend<LinearOp>*> kAll = {&kTileA, &kP64A, &kTileB, &kP64B, &kReference};
const std::vector<const Backend<LinearOp>*> kOneLayout = {&kTileA, &kTileB, &kReference};

using Times = std::array<double, kRowBuckets.size()>;

ProofReport report_of(std::span<const Backend<LinearOp>* const> backends, const std::function<Times()>& times) {
  ProofReport r;
  r.where = this_cpu();
  for (const Backend<LinearOp>* b : backends)
    for (const char* tactic : {"one", "two"}) {
      ProofEntry e;
      e.op = "linear", e.problem = kProblem.text(), e.backend = b->name, e.tactic = tactic, e.comparisons = 1;
      e.us = times();
      r.entries.push_back(e);
    }
  return r;
}

const ProofEntry& entry_of(const ProofReport& report, const Choice<LinearOp>& choice) {
  return *report.find(kProblem.text(), choice.backend->name, choice.tactic.name);
}

Choices<LinearOp> choose_of(const ProofReport& report, std::span<const Backend<LinearOp>* const> backends) {
  return choose_among(report, kProblem, "", backends);
}

// Times from few values, so that ties are frequent; some zero, which is untimed; some far too large.
Times random_times(std::mt19937& random, bool holes) {
  Times times;
  for (double& us : times) {
    us = 1 + random() % 8;
    if (random() % 20 == 0) us *= 1e6;
    if (holes && random() % 3 == 0) us = 0;
  }
  return times;
}

// With one layout the plan is in no bucket slower than any single tactic that serves all of them.
TEST(Choose, PlanIsInNoBucketSlowerThanAnySingleChoice) {
  const log::Level level = log::level();
  log::set_level(log::Level::kError);  // often nothing but the reference is left
  std::mt19937 random(11);
  for (int round = 0; round < 2'000; ++round) {
    const bool holes = round % 2 == 1;
    ProofReport report = report_of(kOneLayout, [&] { return random_times(random, holes); });
    for (ProofEntry& e : report.entries)
      if (e.backend != "reference" && random() % 4 == 0) e.verdict = refuse(VerdictCode::kWrongOutput, "", "");
    bool other = false;
    for (const ProofEntry& e : report.entries) other = other || (e.backend != "reference" && e.verdict.ok());
    const Choices<LinearOp> plan = choose_of(report, kOneLayout);
    for (size_t b = 0; b < kRowBuckets.size(); ++b) {
      const ProofEntry& chosen = entry_of(report, plan.by_bucket[b]);
      ASSERT_TRUE(chosen.verdict.ok());
      ASSERT_EQ(chosen.backend == "reference", !other) << round;
      for (const ProofEntry& single : report.entries) {
        if (!single.verdict.ok() || (other && single.backend == "reference") || us_at(single, b) == 0) continue;
        ASSERT_GT(us_at(chosen, b), 0) << round;
        ASSERT_LE(us_at(chosen, b), us_at(single, b)) << round << " bucket " << b << " " << single.backend;
      }
    }
    // The same times, the same plan.
    const Choices<LinearOp> again = choose_of(report, kOneLayout);
    for (size_t b = 0; b < kRowBuckets.size(); ++b) {
      ASSERT_EQ(again.by_bucket[b].backend, plan.by_bucket[b].backend);
      ASSERT_EQ(again.by_bucket[b].tactic.name, plan.by_bucket[b].tactic.name);
    }
  }
  log::set_level(level);
}

// Weights lie packed one way: no plan mixes layouts, and what takes over reads them too. It is in no bucket slower than
// the best single choice: the tactic of any layout whose times multiply to the least.
TEST(Choose, BackendsOfClashingLayoutsDoNotShareAServer) {
  std::mt19937 random(13);
  int tile = 0, p64 = 0;
  for (int round = 0; round < 2'000; ++round) {
    const ProofReport report = report_of(kAll, [&] { return random_times(random, false); });
    const Choices<LinearOp> plan = choose_of(report, kAll);
    const Layout layout = plan.by_bucket[0].backend->layout;
    (layout == Layout::kP64 ? p64 : tile) += 1;
    const ProofEntry* best = nullptr;
    double best_product = std::numeric_limits<double>::infinity();
    for (const ProofEntry& e : report.entries) {
      if (e.backend == "reference") continue;
      double product = 1;
      for (const double us : e.us) product *= us;
      if (product < best_product) best_product = product, best = &e;
    }
    for (size_t b = 0; b < kRowBuckets.size(); ++b) {
      ASSERT_EQ(plan.by_bucket[b].backend->layout, layout) << round;
      ASSERT_LE(us_at(entry_of(report, plan.by_bucket[b]), b), best->us[b]) << round << " bucket " << b;
      for (const Choice<LinearOp>& behind : plan.behind[b])
        ASSERT_TRUE(behind.backend->layout == layout || behind.backend->name == "reference") << behind.backend->name;
    }
  }
  EXPECT_GT(tile, 200);
  EXPECT_GT(p64, 200);
}

// A real crossover: with few rows one is faster, with many the other; both serve, since they read the same payload.
TEST(Choose, ACrossoverWithinOneLayoutIsTakenAndAcrossLayoutsIsNot) {
  const auto report_with = [](const Backend<LinearOp>& few, const Backend<LinearOp>& many) {
    ProofReport report = report_of(kAll, [] { return Times{50, 50, 50, 50, 50, 50, 50}; });
    for (ProofEntry& e : report.entries) {
      if (e.backend == few.name) e.us = {1, 2, 8, 16, 32, 128, 256};
      if (e.backend == many.name) e.us = {4, 4, 5, 6, 8, 20, 40};
    }
    return report;
  };
  const Choices<LinearOp> shared = choose_of(report_with(kTileA, kTileB), kAll);
  EXPECT_EQ(shared.at(1).backend->name, "tile_a");
  EXPECT_EQ(shared.at(512).backend->name, "tile_b");
  const Choices<LinearOp> clash = choose_of(report_with(kTileA, kP64B), kAll);
  for (const int rows : kRowBuckets) EXPECT_EQ(clash.at(rows).backend->layout, Layout::kP64) << rows;
  EXPECT_EQ(clash.at(1).backend->name, "p64_b");
}

TEST(Choose, WithoutTimesTheFirstBackendsLastTacticServes) {
  const ProofReport report = report_of(kAll, [] { return Times{}; });
  for (const int rows : kRowBuckets) {
    EXPECT_EQ(choose_of(report, kAll).at(rows).backend->name, "tile_a");
    EXPECT_EQ(choose_of(report, kAll).at(rows).tactic.name, "two");
  }
}

}  // namespace
}  // namespace mettle
