// Two children at a time find what one finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "prove/candidates.h"
#include "prove/mutants.h"
#include "prove/prover.h"
#include "prove/test_problems.h"
#include "prove/trial.h"

namespace mettle {
namespace {

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
  const ProofReport one = prove(problems, options, mutant_candidates());
  options.threads = 2;
  size_t last = 0, total = 0;
  options.on_progress = [&](size_t done, size_t all, const ProofEntry&) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  const ProofReport two = prove(problems, options, mutant_candidates());
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
  for (const ProofEntry& e : prove(problems, options, some).entries) {
    const VerdictCode wanted = e.backend == "segfaults" ? VerdictCode::kFault : VerdictCode::kOk;
    deaths += wanted == VerdictCode::kFault;
    EXPECT_EQ(name_of(e.verdict.code), name_of(wanted)) << e.problem << ": " << e.verdict.sentence;
  }
  EXPECT_EQ(deaths, 2);
}

// Each child is a shell that keeps what it is sent and then becomes the child.
TEST(SideBySide, ChildrenKnowThatTheyShareCoresAndTheLongestComesFirst) {
  const TemporaryFolder folder;
  ProveOptions options;
  options.device = this_cpu();
  options.threads = 2;
  options.child_argv = {"/bin/sh", "-c", R"(f=$(mktemp "$0/XXXXXX") && cat >"$f" && exec "$1" --child <"$f")",
                        folder.path(), std::filesystem::read_symlink("/proc/self/exe")};
  options.cache_folder = "none";
  const std::vector<AnyProblem> problems = {EmbedProblem{100, 64}, JoinProblem{.hidden = 96, .ranks = 2},
                                            LinearProblem{.in = 128, .out = 100, .format = WeightFormat::kNvfp4}};
  size_t before_embed = 0;
  bool seen = false;
  options.on_progress = [&](size_t done, size_t, const ProofEntry& entry) {
    if (entry.op != "embed" || seen) return;
    seen = true;
    before_embed = done;
  };
  const ProofReport report = prove(problems, options, Candidates::all());
  EXPECT_TRUE(all_proved(report));
  const auto of_join = std::count_if(report.entries.begin(), report.entries.end(), [](const ProofEntry& e) {
    return e.op == "join" && e.verdict.code != VerdictCode::kIsaMissing;
  });
  EXPECT_GE(before_embed, static_cast<size_t>(of_join)) << "one tactic, the first of the list: the last to be proved";
  int beside = 0, alone = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    std::ifstream in(file.path());
    std::string head, job;
    std::getline(in, head);
    const bool shares = head.find(R"("beside":true)") != std::string::npos;
    ++(shares ? beside : alone);
    while (std::getline(in, job)) {
      EXPECT_EQ(job.find(R"("prove":true)") != std::string::npos, shares) << job;
      EXPECT_EQ(job.find(R"("time":true)") != std::string::npos, !shares) << job;
    }
  }
  EXPECT_EQ(beside, 3);  // one a problem
  EXPECT_EQ(alone, 1);   // times are taken alone
}

TEST(SideBySide, NoChildStartsIsOneFailure) {
  ProveOptions options;
  options.device = this_cpu();
  options.threads = 2;
  options.child_argv = {"/bin/false"};
  options.cache_folder = "none";
  const std::vector<AnyProblem> problems = {EmbedProblem{100, 64}, JoinProblem{.hidden = 96, .ranks = 2},
                                            SampleProblem{.vocab = 520, .usable = 500}};
  EXPECT_THROW(prove(problems, options, mutant_candidates()), Error);
}

}  // namespace
}  // namespace mettle
