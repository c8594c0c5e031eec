// Two children at a time find what one finds.
#include <gtest/gtest.h>

#include "base/error.h"
#include "prove/candidates.h"
#include "prove/mutants.h"
#include "prove/prover.h"
#include "prove/test_problems.h"
#include "prove/trial.h"

namespace mettle {
namespace {

constexpr int kSilence = 20'000;

TEST(SideBySide, EachChildSettlesItsOwnProblems) {
  const std::vector<AnyProblem> problems = {EmbedProblem{100, 64}, JoinProblem{.hidden = 96, .ranks = 2},
                                            LinearProblem{.in = 128, .out = 100, .format = WeightFormat::kNvfp4},
                                            EmbedProblem{100, 64}, SampleProblem{.vocab = 520, .usable = 500}};
  ProveOptions options;
  options.device = this_cpu();
  options.child_argv = {"/proc/self/exe", "--child"};
  options.cache_folder = "none";
  options.time = false;
  options.only_backend = "reference";
  const ProofReport one = prove(problems, options, mutant_candidates(), kSilence);
  options.threads = 2;
  size_t last = 0, total = 0;
  options.on_progress = [&](size_t done, size_t all, const ProofEntry&) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  const ProofReport two = prove(problems, options, mutant_candidates(), kSilence);
  EXPECT_EQ(last, 4u);
  EXPECT_EQ(total, 4u);
  ASSERT_EQ(one.entries.size(), 4u);  // the second embed is the first
  ASSERT_EQ(two.entries.size(), one.entries.size());
  for (size_t i = 0; i < one.entries.size(); ++i) {
    EXPECT_EQ(two.entries[i].problem, one.entries[i].problem);
    EXPECT_TRUE(two.entries[i].verdict.ok()) << two.entries[i].problem << ": " << two.entries[i].verdict.sentence;
    EXPECT_GT(two.entries[i].comparisons, 0u);
    EXPECT_EQ(two.entries[i].comparisons, one.entries[i].comparisons) << two.entries[i].problem;
    EXPECT_EQ(two.entries[i].cases, one.entries[i].cases) << two.entries[i].problem;
  }
}

// The death of one child is the verdict of one entry; the other child's problem is proved beside it.
TEST(SideBySide, ADeathIsOneEntrysVerdict) {
  ProveOptions options;
  options.device = this_cpu();
  options.threads = 2;
  options.child_argv = {"/proc/self/exe", "--child"};
  options.cache_folder = "none";
  options.time = false;
  const std::vector<AnyProblem> problems = {
      LinearProblem{.in = 128, .out = 100, .format = WeightFormat::kNvfp4}, SampleProblem{.vocab = 520, .usable = 500},
      LinearProblem{.in = 64, .out = 50, .format = WeightFormat::kBf16}, EmbedProblem{100, 64}};
  Candidates some = mutant_candidates();
  std::apply(
      [](auto&... list) {
        (std::erase_if(list, [](const auto* b) { return b->name != "reference" && b->name != "segfaults"; }), ...);
      },
      some.lists);
  int deaths = 0;
  for (const ProofEntry& e : prove(problems, options, some, kSilence).entries) {
    const VerdictCode wanted = e.backend == "segfaults" ? VerdictCode::kFault : VerdictCode::kOk;
    deaths += wanted == VerdictCode::kFault;
    EXPECT_EQ(name_of(e.verdict.code), name_of(wanted)) << e.problem << ": " << e.verdict.sentence;
  }
  EXPECT_EQ(deaths, 2);
}

TEST(SideBySide, NoChildStartsIsOneFailure) {
  ProveOptions options;
  options.device = this_cpu();
  options.threads = 2;
  options.child_argv = {"/bin/false"};
  options.cache_folder = "none";
  const std::vector<AnyProblem> problems = {EmbedProblem{100, 64}, JoinProblem{.hidden = 96, .ranks = 2},
                                            SampleProblem{.vocab = 520, .usable = 500}};
  EXPECT_THROW(prove(problems, options, mutant_candidates(), kSilence), Error);
}

}  // namespace
}  // namespace mettle
