#include <gtest/gtest.h>

#include <cstring>

#include "base/thread_team.h"
#include "prove/candidates.h"
#include "prove/test_problems.h"

namespace mettle {
namespace {

ProveOptions options_without_store() {
  ProveOptions o;
  o.device = this_cpu();
  o.threads = usable_cores();
  o.child_argv = {"/proc/self/exe", "--child"};
  o.cache_folder = "none";
  return o;
}

std::string failures_of(const ProofReport& report) {
  std::string text;
  for (const ProofEntry& e : report.entries)
    if (!e.verdict.ok() && !info_of(e.verdict.code).refusal)
      text += e.op + " " + e.backend + " " + e.tactic + " " + e.problem + ": " + std::string(name_of(e.verdict.code)) +
              " " + e.verdict.sentence + "\n";
  return text;
}

TEST(Prover, EveryBackendOfTheTinyModelIsProved) {
  const ProofReport report = prove(tiny_problems(), options_without_store());
  EXPECT_EQ(failures_of(report), "");
  EXPECT_TRUE(all_proved(report));
}

}  // namespace
}  // namespace mettle

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--child") == 0) return mettle::prove_child(mettle::Candidates::all());
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
