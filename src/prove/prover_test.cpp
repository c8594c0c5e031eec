// Proves the prover: broken backends get their verdicts, healthy ones pass, the parent survives everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/file_map.h"
#include "base/temporary_folder.h"
#include "base/thread_team.h"
#include "prove/mutants.h"
#include "prove/store.h"
#include "prove/test_problems.h"
#include "prove/trial.h"
#include "prove/tune.h"

namespace mettle {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

ProveOptions without_store() {
  ProveOptions o;
  o.device = this_cpu();
  o.threads = 2;
  o.time = false;
  o.child_argv = {"/proc/self/exe", "--child"};
  o.cache_folder = "none";
  o.silence_ms = 8'000;
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

// Small shapes with an odd edge each.
std::vector<AnyProblem> small_problems() {
  return {EmbedProblem{100, 64},
          JoinProblem{.hidden = 96, .ranks = 2, .plus_one = true},
          LinearProblem{.in = 128, .out = 100, .format = WeightFormat::kNvfp4},
          MoeProblem{.hidden = 128, .experts = 8, .top_k = 2, .width = 64, .shared_width = 64, .shared_gate = true},
          AttentionProblem{.hidden = 128,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 32,
                           .rotary_dim = 8,
                           .gate = true,
                           .norm_plus_one = true},
          GdnProblem{.hidden = 64, .key_heads = 2, .value_heads = 4, .dk = 16, .dv = 32},
          SampleProblem{.vocab = 520, .usable = 500}};
}

TEST(Prover, EveryMutantGetsItsVerdict) {
  // The mutants alone: one report, as many children as deaths.
  Candidates planted = mutant_candidates();
  std::apply(
      [](auto&... list) {
        (std::erase_if(
             list, [](const auto* b) { return b->name == "cpu_gemv" || b->name == "cpu_gemm" || b->name == "cpu"; }),
         ...);
      },
      planted.lists);
  const ProofReport report = prove(small_problems(), without_store(), planted);
  size_t found = 0;
  for (const Mutant& m : mutants())
    for (const ProofEntry& e : report.entries) {
      if (e.op != m.op || e.backend != m.name) continue;
      ++found;
      EXPECT_EQ(name_of(e.verdict.code), name_of(m.code)) << m.op << " " << m.name << ": " << e.verdict.sentence;
      EXPECT_NE(e.verdict.sentence, "") << m.name;
    }
  EXPECT_EQ(found, mutants().size());
  for (const ProofEntry& e : report.entries)
    if (e.backend == "reference") {
      EXPECT_TRUE(e.verdict.ok()) << e.op << ": " << e.verdict.sentence;
    }
  EXPECT_FALSE(all_proved(report));
}

TEST(Prover, SentencesNameRowColumnAndValues) {
  const std::vector<AnyProblem> problems = {LinearProblem{.in = 128, .out = 100, .format = WeightFormat::kNvfp4}};
  ProveOptions options = without_store();
  options.only_backend = "column_gain";
  const ProofReport report = prove(problems, options, mutant_candidates());
  ASSERT_EQ(report.entries.size(), 1u);
  const Verdict& v = report.entries[0].verdict;
  EXPECT_THAT(v.sentence, HasSubstr("rows1: y[row 0, column 40] is "));
  EXPECT_THAT(v.sentence, HasSubstr("columns 40..40"));
  EXPECT_THAT(v.sentence, HasSubstr("(rule: element)"));
  EXPECT_NE(v.have, "");
  EXPECT_THAT(v.need, HasSubstr("["));
  EXPECT_GT(report.entries[0].max_error, report.entries[0].bound);

  options.only_backend = "segfaults";
  EXPECT_THAT(prove(problems, options, mutant_candidates()).entries[0].verdict.sentence, HasSubstr("signal SIGSEGV"));
  options.only_backend = "exits";
  EXPECT_THAT(prove(problems, options, mutant_candidates()).entries[0].verdict.sentence, HasSubstr("exit code 0"));
}

// A fault that every other case lets pass; the sentence names the column of the weight that was read.
TEST(Prover, RowsWithOneNumberNameTheWeight) {
  ProveOptions options = without_store();
  options.only_op = "linear";
  options.only_backend = "one_number";
  const ProofReport report = prove(small_problems(), options, mutant_candidates());
  ASSERT_EQ(report.entries.size(), 1u);
  EXPECT_THAT(report.entries[0].verdict.sentence, StartsWith("one_hot: transposed weight[row 0, column "));
}

// Behind probabilities in bf16 every case before these lets them pass.
TEST(Prover, WrongScoresShowBesideAStrongKey) {
  for (const auto& [backend, words] :
       {std::pair{"scale", "deep: partial[row "}, std::pair{"slowest_pair", "rope_probe: partial[row "}}) {
    ProveOptions options = without_store();
    options.only_op = "attention";
    options.only_backend = backend;
    const ProofReport report = prove(small_problems(), options, mutant_candidates());
    ASSERT_EQ(report.entries.size(), 1u) << backend;
    EXPECT_THAT(report.entries[0].verdict.sentence, StartsWith(words)) << backend;
  }
}

TEST(Prover, SmallProblemsOfEveryFormatAreProved) {
  std::vector<AnyProblem> problems;
  for (const WeightFormat f :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block, WeightFormat::kNvfp4})
    for (const Activation a : {Activation::kF32, Activation::kBf16})
      problems.push_back(LinearProblem{.in = 144, .out = 37, .format = f, .activation = a});
  for (const Activation a : {Activation::kF32, Activation::kBf16}) {
    problems.push_back(JoinProblem{.hidden = 100, .ranks = 3, .activation = a});
    problems.push_back(MoeProblem{.hidden = 128,
                                  .experts = 7,
                                  .top_k = 3,
                                  .width = 48,
                                  .renormalise = false,
                                  .format = WeightFormat::kBf16,
                                  .activation = a});
    problems.push_back(MoeProblem{.hidden = 128,
                                  .experts = 12,
                                  .top_k = 2,
                                  .width = 32,
                                  .shared_width = 16,
                                  .format = WeightFormat::kFp8,
                                  .shared_format = WeightFormat::kBf16,
                                  .activation = a});
    problems.push_back(AttentionProblem{
        .hidden = 128, .heads = 3, .kv_heads = 1, .head_dim = 32, .rotary_dim = 32, .qk_norm = true, .activation = a});
    problems.push_back(AttentionProblem{.hidden = 112,
                                        .heads = 2,
                                        .kv_heads = 2,
                                        .head_dim = 24,
                                        .rotary_dim = 8,
                                        .gate = true,
                                        .qk_norm = false,
                                        .activation = a});
    for (const bool norm : {false, true})
      problems.push_back(AttentionProblem{.hidden = 112,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = norm ? 30 : 24,
                                          .rotary_dim = 8,
                                          .gate = norm,
                                          .qk_norm = norm,
                                          .activation = a,
                                          .cache = CacheFormat::kE4M3});
    // Found by RapidCheck: healthy, and convicted once.
    problems.push_back(GdnProblem{.hidden = 2, .key_heads = 1, .value_heads = 1, .dk = 1, .dv = 1, .activation = a});
    problems.push_back(AttentionProblem{.hidden = 23,
                                        .heads = 1,
                                        .kv_heads = 1,
                                        .head_dim = 29,
                                        .rotary_dim = 0,
                                        .activation = a,
                                        .cache = CacheFormat::kE4M3});
    problems.push_back(GdnProblem{.hidden = 80, .key_heads = 1, .value_heads = 3, .dk = 16, .dv = 16, .activation = a});
  }
  problems.push_back(MoeProblem{.hidden = 64, .experts = 36, .top_k = 4, .width = 32});  // no power of two, no tile
  problems.push_back(SampleProblem{.vocab = 33, .usable = 33});
  const ProofReport report = prove(problems, without_store());
  EXPECT_EQ(failures_of(report), "");
  EXPECT_TRUE(all_proved(report));
}

TEST(Prover, HealthyBackendsPassWithTwentySeeds) {
  ThreadTeam team(2);
  const Device device = this_cpu();
  for (uint64_t seed = 1; seed <= 20; ++seed)
    for (const AnyProblem& any : small_problems())
      std::visit(
          [&](const auto& problem) {
            using Op = OpOf<std::decay_t<decltype(problem)>>;
            const TrialContext context{&team, seed, [] {}, 500'000};
            Trial<Op> trial(problem, context);
            for (const Backend<Op>* b : backends_of<Op>()) {
              if (!b->supports(problem, device).ok()) continue;
              // One tactic of each backend a seed, in rotation: each comes up at least twice.
              const std::vector<Tactic> tactics = b->tactics(problem, device);
              const Tactic& t = tactics[seed % tactics.size()];
              ProofEntry entry;
              Examination examination(entry);
              try {
                trial.prove(*b, t, examination);
                examination.finish();
              } catch (const ProofFailure& f) {
                ADD_FAILURE() << problem.text() << " " << b->name << " " << t.name << " seed " << seed << ": "
                              << f.verdict.sentence;
              }
              EXPECT_GT(entry.comparisons, 0u);
              EXPECT_LT(entry.max_error, 5) << problem.text() << " " << b->name << " " << t.name;  // of 10
            }
          },
          any);
}

TEST(Prover, ReportsAbsentInstructionSetsAsRefusals) {
  ProveOptions options = without_store();
  options.device.isas = {Isa::kScalar};
  const std::vector<AnyProblem> problems = {LinearProblem{.in = 128, .out = 100, .format = WeightFormat::kNvfp4}};
  const ProofReport report = prove(problems, options);
  size_t missing = 0;
  for (const ProofEntry& e : report.entries)
    if (e.verdict.code == VerdictCode::kIsaMissing) {
      ++missing;
      EXPECT_EQ(e.verdict.have, "scalar");
      EXPECT_EQ(e.verdict.need, e.tactic);
    }
  EXPECT_GT(missing, 0u);
  EXPECT_EQ(failures_of(report), "");
  EXPECT_TRUE(all_proved(report));
}

TEST(Prover, SameProblemTwiceIsProvedOnce) {
  const std::vector<AnyProblem> problems = {JoinProblem{.hidden = 96}, JoinProblem{.hidden = 96}};
  std::set<std::string> names;
  const ProofReport report = prove(problems, without_store());
  for (const ProofEntry& e : report.entries) EXPECT_TRUE(names.insert(e.backend + " " + e.tactic).second) << e.tactic;
  EXPECT_GE(names.size(), backends_of<JoinOp>().size());
  EXPECT_TRUE(prove(std::vector<AnyProblem>{}, without_store()).entries.empty());
  EXPECT_FALSE(all_proved({}));
}

TEST(Prover, ChildThatCannotStartIsAnError) {
  const std::vector<AnyProblem> problems = {JoinProblem{.hidden = 96}};
  ProveOptions options = without_store();
  options.child_argv = {"/nonexistent/mettle"};
  EXPECT_THROW(prove(problems, options), Error);
  options.child_argv = {"/bin/false"};
  EXPECT_THROW(prove(problems, options), Error);
}

TEST(Prover, TimesEveryBucketOfAFastOp) {
  ProveOptions options = without_store();
  options.time = true;
  const std::vector<AnyProblem> problems = {JoinProblem{.hidden = 96}};
  const ProofReport report = prove(problems, options);
  // Who is far slower than the best is not asked about more rows; the best is asked about all.
  EXPECT_TRUE(std::any_of(report.entries.begin(), report.entries.end(), [](const ProofEntry& e) {
    return std::all_of(e.us.begin(), e.us.end(), [](double us) { return us > 0; });
  }));
}

// ---- store ---------------------------------------------------------------------------------------------------------
class Store : public testing::Test {
 protected:
  Store() {
    options_ = without_store();
    options_.cache_folder = folder_;
  }
  std::string file() const { return VerdictStore(folder_, build_id(), options_.device).path(); }
  ProofReport run() { return prove(problems_, options_); }
  static bool cached(const ProofReport& r) {
    return std::all_of(r.entries.begin(), r.entries.end(), [](const ProofEntry& e) { return e.cached; });
  }

  TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_ / "verdicts";
  ProveOptions options_;
  std::vector<AnyProblem> problems_ = {JoinProblem{.hidden = 96}, EmbedProblem{50, 32}};
};

TEST_F(Store, SecondRunReadsTheVerdicts) {
  const ProofReport first = run();
  EXPECT_FALSE(cached(first));
  options_.child_argv = {"/nonexistent"};  // no child is needed
  const ProofReport second = run();
  EXPECT_TRUE(cached(second));
  ASSERT_EQ(second.entries.size(), first.entries.size());
  for (size_t i = 0; i < first.entries.size(); ++i) {
    EXPECT_EQ(second.entries[i].verdict.code, first.entries[i].verdict.code);
    EXPECT_EQ(second.entries[i].comparisons, first.entries[i].comparisons);
  }
  options_.reprove = true;
  EXPECT_THROW(run(), Error);
}

TEST_F(Store, AnyDamageIsAMiss) {
  run();
  const std::string whole = read_file(file(), 1 << 20);
  const auto put = [&](const std::string& content) { std::ofstream(file(), std::ios::binary) << content; };
  for (size_t cut = 0; cut < whole.size(); cut += whole.size() / 37 + 1) {
    put(whole.substr(0, cut));
    ProofEntry e{.op = "join",
                 .backend = "reference",
                 .tactic = "plain",
                 .problem = text_of(problems_[0]),
                 .numerics = Numerics{}.text()};
    bool timed = false;
    EXPECT_FALSE(VerdictStore(folder_, build_id(), options_.device).find(e, 2, &timed)) << cut;
  }
  for (size_t at = 0; at < whole.size(); at += 97) {
    std::string flipped = whole;
    flipped[at] ^= 4;
    put(flipped);
    ProofEntry e{.op = "join",
                 .backend = "reference",
                 .tactic = "plain",
                 .problem = text_of(problems_[0]),
                 .numerics = Numerics{}.text()};
    bool timed = false;
    EXPECT_FALSE(VerdictStore(folder_, build_id(), options_.device).find(e, 2, &timed)) << at;
  }
  put("{}");
  EXPECT_FALSE(cached(run()));  // and it is written anew
  EXPECT_TRUE(cached(run()));
}

TEST_F(Store, AnotherBuildOrDeviceIsAMiss) {
  run();
  Device other = options_.device;
  other.model += " II";
  EXPECT_NE(VerdictStore(folder_, build_id(), other).path(), file());
  EXPECT_NE(VerdictStore(folder_, "another", options_.device).path(), file());
  std::filesystem::copy_file(file(), VerdictStore(folder_, "another", options_.device).path());
  ProofEntry e{.op = "join",
               .backend = "reference",
               .tactic = "plain",
               .problem = text_of(problems_[0]),
               .numerics = Numerics{}.text()};
  bool timed = false;
  EXPECT_TRUE(VerdictStore(folder_, build_id(), options_.device).find(e, 2, &timed));
  EXPECT_FALSE(VerdictStore(folder_, "another", options_.device).find(e, 2, &timed));  // the identity inside tells
  e.numerics = "h=f32";
  EXPECT_FALSE(VerdictStore(folder_, build_id(), options_.device).find(e, 2, &timed));
}

TEST_F(Store, FolderThatCannotBeWrittenIsNoFailure) {
  std::ofstream(folder_) << "a file where the folder should be";
  EXPECT_TRUE(all_proved(run()));
  options_.cache_folder = "/proc/nothing/here";
  EXPECT_TRUE(all_proved(run()));
}

TEST_F(Store, WritersMerge) {
  const std::vector<AnyProblem> both = problems_;
  VerdictStore one(folder_, "b", options_.device), two(folder_, "b", options_.device);
  ProofEntry e{
      .op = "join", .backend = "x", .tactic = "y", .problem = "p", .numerics = "n", .bound = 10, .comparisons = 5};
  one.put(e, 1);
  e.problem = "q";
  two.put(e, 1);
  one.save();
  two.save();
  const VerdictStore third(folder_, "b", options_.device);
  bool timed = false;
  EXPECT_TRUE(third.find(e, 1, &timed));
  EXPECT_FALSE(timed);
  e.problem = "p";
  EXPECT_TRUE(third.find(e, 1, &timed));
  e.problem = "r";
  EXPECT_FALSE(third.find(e, 1, &timed));
}

TEST_F(Store, KeepsNoVerdictThatMayChangeAndNoEmptyProof) {
  VerdictStore store(folder_, "b", options_.device);
  ProofEntry e{.op = "join", .backend = "x", .tactic = "y", .problem = "p", .numerics = "n"};
  e.verdict = refuse(VerdictCode::kHang, "", "");
  store.put(e, 1);
  e.verdict = {};  // OK, but nothing was compared
  e.problem = "q";
  store.put(e, 1);
  store.save();
  const VerdictStore again(folder_, "b", options_.device);
  bool timed = false;
  EXPECT_FALSE(again.find(e, 1, &timed));
  e.problem = "p";
  EXPECT_FALSE(again.find(e, 1, &timed));
}

// ---- choice --------------------------------------------------------------------------------------------------------
ProofReport report_of(const LinearProblem& p) {
  ProofReport r;
  r.where = this_cpu();
  for (const Backend<LinearOp>* b : backends_of<LinearOp>())
    for (const Tactic& t : b->tactics(p, r.where)) {
      if (b->kind != r.where.kind) continue;
      ProofEntry e;
      e.op = "linear";
      e.problem = p.text();
      e.backend = b->name;
      e.tactic = t.name;
      e.comparisons = 1;
      r.entries.push_back(e);
    }
  return r;
}

TEST(Choose, FastestProvedPerBucketAndReferenceLast) {
  const LinearProblem p{.in = 128, .out = 100, .format = WeightFormat::kNvfp4};
  ProofReport r = report_of(p);
  for (ProofEntry& e : r.entries) {
    const bool gemm = e.backend == "cpu_gemm";
    for (size_t b = 0; b < kRowBuckets.size(); ++b)
      e.us[b] = e.backend == "reference" ? 0.1 : (gemm == (b >= 3) ? 1 : 2);
  }
  Choices<LinearOp> c = choose(r, p);
  EXPECT_EQ(c.at(1).backend->name, "cpu_gemv");
  EXPECT_EQ(c.at(16).backend->name, "cpu_gemv");
  EXPECT_EQ(c.at(17).backend->name, "cpu_gemm");
  EXPECT_EQ(c.at(100'000).backend->name, "cpu_gemm");
  EXPECT_EQ(choose(r, p, "reference").at(1).backend->name, "reference");                   // by name it serves
  for (const auto& behind : choose(r, p, "cpu_gemm").behind) EXPECT_TRUE(behind.empty());  // and nothing takes over
  // Of a backend the proved tactics alone.
  ProofReport without = r;
  for (ProofEntry& e : without.entries)
    if (e.backend == "cpu_gemm" && e.tactic == c.at(17).tactic.name)
      e.verdict = refuse(VerdictCode::kWrongOutput, "", "");
  const Choice<LinearOp> other = choose(without, p).at(17);
  EXPECT_FALSE(other.backend->name == "cpu_gemm" && other.tactic.name == c.at(17).tactic.name) << other.tactic.name;
  // Taken out one after the other, the next proved one serves where it served; the reference comes last.
  const size_t workspace = c.workspace(p, 512, 2);
  EXPECT_TRUE(c.serves("cpu_gemv"));
  ASSERT_TRUE(c.remove("cpu_gemv"));
  EXPECT_FALSE(c.serves("cpu_gemv"));
  EXPECT_EQ(c.at(1).backend->name, "cpu_gemm");
  EXPECT_EQ(c.at(100'000).backend->name, "cpu_gemm");
  ASSERT_TRUE(c.remove("cpu_gemm"));
  EXPECT_EQ(c.at(1).backend->name, "reference");
  EXPECT_LE(c.workspace(p, 512, 2), workspace);  // it was counted from the beginning
  EXPECT_FALSE(c.remove("reference"));
  EXPECT_EQ(c.at(1).backend->name, "reference");
  for (ProofEntry& e : r.entries)
    if (e.backend == "cpu_gemm") e.verdict = refuse(VerdictCode::kWrongOutput, "", "");
  EXPECT_EQ(choose(r, p).at(1000).backend->name, "cpu_gemv");  // the next proved one
  testing::internal::CaptureStderr();
  warn_of_failures(r);
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_THAT(warnings, HasSubstr("cpu_gemm"));
  try {
    choose(r, p, "cpu_gemm");  // a named backend never falls back
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kUnsupported);
    EXPECT_THAT(e.message, HasSubstr("cpu_gemm"));
    EXPECT_THAT(e.message, HasSubstr("WRONG_OUTPUT"));
  }
  for (ProofEntry& e : r.entries)
    if (e.backend == "cpu_gemv") e.verdict = refuse(VerdictCode::kFault, "", "");
  EXPECT_EQ(choose(r, p).at(1).backend->name, "reference");
  r.entries.clear();
  EXPECT_THROW(choose(r, p), Error);
  EXPECT_THROW(choose(r, p, "no_such"), Error);
}

TEST(Choose, ReckonsWhatWasNotTimed) {
  const LinearProblem p{.in = 128, .out = 100, .format = WeightFormat::kNvfp4};
  ProofReport r = report_of(p);
  for (ProofEntry& e : r.entries)
    e.us = e.backend == "cpu_gemm" ? decltype(e.us){5, 6, 7, 8, 9, 10, 11} : decltype(e.us){4, 5};
  const Choices<LinearOp> c = choose(r, p);
  EXPECT_EQ(c.at(4).backend->name, "cpu_gemv");
  EXPECT_EQ(c.at(16).backend->name, "cpu_gemm");  // 5 us for 4 rows reckon as 20 for 16
}

TEST(BuildId, IsStable) {
  EXPECT_EQ(build_id(), build_id());
  EXPECT_GE(build_id().size(), 16u);
}

}  // namespace
}  // namespace mettle

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--child") == 0) return mettle::prove_child(mettle::mutant_candidates());
  if (argc > 1 && std::strcmp(argv[1], "--tune-child") == 0) return mettle::tune_child(mettle::mutant_candidates());
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
