// Tuning: what is measured and kept, what a file may say, which tactic then serves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/file_map.h"
#include "base/temporary_folder.h"
#include "prove/mutants.h"
#include "prove/tune.h"
#include "prove/tune_store.h"

namespace mettle {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const LinearProblem kProblem{.in = 128, .out = 100, .format = WeightFormat::kNvfp4};

// All tactics of the problem, proved, without times.
ProofReport proved_report(const LinearProblem& p = kProblem) {
  ProofReport r;
  r.where = this_cpu();
  for (ProofEntry& e : list_candidates(p, r.where, Candidates::all())) {
    if (e.verdict.code == VerdictCode::kUnproved) e.verdict = {}, e.comparisons = 1;
    r.entries.push_back(std::move(e));
  }
  return r;
}

TuneOptions options_in(const std::string& folder) {
  TuneOptions o;
  o.device = this_cpu();
  o.threads = 2;
  o.seconds = 60;
  o.child_argv = {"/proc/self/exe", "--tune-child"};
  o.cache_folder = folder;
  return o;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.message;
  }
  return "nothing thrown";
}

bool same(const TunedTime& a, const TunedTime& b) {
  return a.backend == b.backend && a.tactic == b.tactic && a.us == b.us && a.noise == b.noise && a.samples == b.samples;
}
bool same(const std::vector<TunedUnit>& a, const std::vector<TunedUnit>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const TunedUnit& x, const TunedUnit& y) {
    return x.op == y.op && x.problem == y.problem && x.bucket == y.bucket && x.outcome == y.outcome &&
           same(x.chosen, y.chosen) && same(x.untuned, y.untuned) &&
           std::equal(x.times.begin(), x.times.end(), y.times.begin(), y.times.end(),
                      [](const TunedTime& s, const TunedTime& t) { return same(s, t); });
  });
}

// ---- measuring -----------------------------------------------------------------------------------------------------
TEST(Tune, MeasuresEveryProvedTacticAndTheNextRunTakesWhatIsKept) {
  const TemporaryFolder folder;
  const std::vector<AnyProblem> problems = {kProblem, JoinProblem{.hidden = 96}, kProblem};
  ProofReport report = proved_report();
  for (ProofEntry& e : list_candidates(JoinProblem{.hidden = 96}, report.where, Candidates::all())) {
    if (e.verdict.code == VerdictCode::kUnproved) e.verdict = {};
    report.entries.push_back(std::move(e));
  }
  size_t calls = 0;
  TuneOptions options = options_in(folder.path());
  options.on_progress = [&](size_t done, size_t total, const std::string&) {
    EXPECT_EQ(done, ++calls);
    EXPECT_EQ(total, 2 * kRowBuckets.size());
  };
  const TuneResult first = tune(problems, report, options);
  EXPECT_FALSE(first.out_of_time);
  EXPECT_EQ(first.wanted, 2 * kRowBuckets.size());
  EXPECT_EQ(first.kept, 0u);
  ASSERT_EQ(first.units.size(), first.wanted);
  EXPECT_EQ(calls, first.wanted);
  for (const TunedUnit& u : first.units) {
    size_t proved = 0;
    for (const ProofEntry& e : report.entries) proved += e.problem == u.problem && e.verdict.ok();
    EXPECT_EQ(u.times.size(), proved) << u.problem;
    for (const TunedTime& t : u.times) {
      EXPECT_GT(t.us, 0) << t.backend;
      EXPECT_GE(t.samples, 1) << t.backend;
      EXPECT_TRUE(std::isfinite(t.noise)) << t.backend;
    }
    EXPECT_NE(u.chosen.backend, "reference");
    // The rule of the comparison holds in what is kept.
    if (u.outcome == TuneOutcome::kFaster)
      EXPECT_TRUE(clearly_faster(u.chosen, u.untuned));
    else
      EXPECT_TRUE(same(u.chosen, u.untuned));
  }
  options.child_argv = {"/bin/false"};  // nothing is left to measure
  const TuneResult second = tune(problems, report, options);
  EXPECT_EQ(second.kept, second.wanted);
  EXPECT_TRUE(same(second.units, first.units));
  apply_tuning(folder.path(), options.threads, report);
  for (size_t b = 0; b < kRowBuckets.size(); ++b) {
    const Choice<LinearOp> choice = choose(report, kProblem).by_bucket[b];
    EXPECT_EQ(choice.backend->name, first.units[b].chosen.backend);
    EXPECT_EQ(choice.tactic.name, first.units[b].chosen.tactic);
  }
  // Other threads, another tuning.
  options.threads = 1;
  EXPECT_THROW(tune(problems, report, options), Error);
}

TEST(Tune, StopsWhenTheTimeIsUpAndGoesOnFromThere) {
  const TemporaryFolder folder;
  const std::vector<AnyProblem> problems = {kProblem};
  const ProofReport report = proved_report();
  TuneOptions options = options_in(folder.path());
  options.seconds = 1e-6;
  TuneResult result = tune(problems, report, options);
  EXPECT_TRUE(result.out_of_time);
  EXPECT_EQ(result.units.size(), 0u);
  // Of what an earlier run left, only the rest is measured.
  options.seconds = 60;
  TuneResult whole = tune(problems, report, options);
  ASSERT_EQ(whole.units.size(), kRowBuckets.size());
  const TemporaryFolder half;
  TuningStore store(half.path(), tuning_identity(options.device, options.threads));
  for (size_t b : {0, 3, 5}) store.put(whole.units[b]);
  options.cache_folder = half.path();
  std::vector<size_t> done;
  options.on_progress = [&](size_t now, size_t, const std::string&) { done.push_back(now); };
  result = tune(problems, report, options);
  EXPECT_EQ(result.kept, 3u);
  EXPECT_EQ(done, (std::vector<size_t>{4, 5, 6, 7}));
  ASSERT_EQ(result.units.size(), kRowBuckets.size());
  for (size_t b : {0, 3, 5}) EXPECT_TRUE(same({result.units[b]}, {whole.units[b]})) << b;
  options.retune = true;
  EXPECT_EQ(tune(problems, report, options).kept, 0u);
}

// A tactic that is proved and ends the child while it is timed is left out; the rest is measured.
TEST(Tune, WhatEndsTheChildIsDroppedAndNamed) {
  const std::vector<AnyProblem> problems = {kProblem};
  for (const auto& [mutant, words] :
       {std::pair{"segfaults", "SIG"}, std::pair{"exits", "exit code 0"}, std::pair{"hangs", "no sign of life"}}) {
    ProofReport report = proved_report();
    ProofEntry planted = report.entries.front();
    planted.backend = mutant;
    planted.tactic = "plain";
    report.entries.push_back(planted);
    TuneOptions options = options_in("none");
    options.silence_ms = 3'000;
    const TuneResult result = tune(problems, report, options);
    ASSERT_EQ(result.dropped.size(), 1u) << mutant;
    EXPECT_THAT(result.dropped[0], HasSubstr(fmt::format("linear {} plain", mutant)));
    EXPECT_THAT(result.dropped[0], HasSubstr(words));
    EXPECT_EQ(result.units.size(), kRowBuckets.size()) << mutant;
    for (const TunedUnit& u : result.units)
      for (const TunedTime& t : u.times) EXPECT_NE(t.backend, mutant);
  }
}

TEST(Tune, ChildThatCannotStartIsAnErrorAndNothingProvedIsSaid) {
  const std::vector<AnyProblem> problems = {kProblem};
  ProofReport report = proved_report();
  TuneOptions options = options_in("none");
  options.child_argv = {"/bin/false"};
  EXPECT_THAT(message_of([&] { tune(problems, report, options); }), HasSubstr("did not start"));
  for (ProofEntry& e : report.entries) e.verdict = refuse(VerdictCode::kWrongOutput, "", "");
  const TuneResult result = tune(problems, report, options);
  EXPECT_EQ(result.wanted, 0u);
  EXPECT_THAT(result.refused, testing::ElementsAre("linear " + kProblem.text()));
}

// ---- what is chosen ------------------------------------------------------------------------------------------------
TEST(Tune, OnlyWhatIsClearlyFasterTakesOver) {
  const TunedTime untuned{"a", "t", 100, 0.01, 25};
  const auto other = [](double us, double noise, int samples) { return TunedTime{"b", "t", us, noise, samples}; };
  EXPECT_TRUE(clearly_faster(other(90, 0.01, 25), untuned));
  EXPECT_FALSE(clearly_faster(other(99.5, 0, 1'000'000), {"a", "t", 100, 0, 1'000'000}));  // half a percent
  EXPECT_FALSE(clearly_faster(other(100, 0, 25), untuned));
  EXPECT_FALSE(clearly_faster(other(110, 0.01, 25), untuned));
  EXPECT_FALSE(clearly_faster(other(90, 0.5, 5), untuned));  // lost in its noise
}

// Whatever tuned times there are, choose() takes what the comparison chose, and never what is not proved.
TEST(Tune, ServesItsChoiceAndNothingUnproved) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    ProofReport report = proved_report();
    std::vector<ProofEntry*> proved;
    for (ProofEntry& e : report.entries) {
      for (double& us : e.us) us = random() % 4 == 0 ? 0 : 1 + random() % 50;  // ties and untimed ones among them
      if (!e.verdict.ok()) continue;
      if (e.backend != "reference" && random() % 5 == 0)
        e.verdict = refuse(VerdictCode::kWrongOutput, "", "");
      else if (e.backend != "reference")
        proved.push_back(&e);
    }
    const ProofReport before = report;
    std::vector<TunedUnit> units;
    for (size_t b = 0; b < kRowBuckets.size(); ++b) {
      TunedUnit u{.op = "linear", .problem = kProblem.text(), .bucket = b};
      for (const ProofEntry& e : report.entries)
        if (random() % 4 != 0) u.times.push_back({e.backend, e.tactic, 1.0 + random() % 50, 0.01, 5});
      const ProofEntry& e = report.entries[random() % report.entries.size()];
      u.chosen = {e.backend, e.tactic, 1.0 + random() % 50, 0.01, 5};
      if (random() % 3 != 0) units.push_back(u);
    }
    if (proved.empty()) continue;
    apply_units(units, report);
    const Choices<LinearOp> choices = choose(report, kProblem);
    for (const TunedUnit& u : units) {
      const Choice<LinearOp>& c = choices.by_bucket[u.bucket];
      const ProofEntry* chosen = report.find(u.problem, u.chosen.backend, u.chosen.tactic);
      ASSERT_TRUE(report.find(u.problem, c.backend->name, c.tactic.name)->verdict.ok());
      ASSERT_NE(c.backend->name, "reference");
      if (chosen->verdict.ok() && chosen->backend != "reference") {
        ASSERT_EQ(c.backend->name, u.chosen.backend) << round << " bucket " << u.bucket;
        ASSERT_EQ(c.tactic.name, u.chosen.tactic) << round << " bucket " << u.bucket;
      } else if (!chosen->verdict.ok()) {  // passed over as a whole
        for (size_t e = 0; e < report.entries.size(); ++e)
          if (report.entries[e].us[u.bucket] != before.entries[e].us[u.bucket]) FAIL() << round;
      }
    }
  }
}

// ---- files ---------------------------------------------------------------------------------------------------------
TunedUnit unit_of(const ProofReport& report) {
  TunedUnit u{.op = "linear", .problem = kProblem.text(), .bucket = 2};
  for (const ProofEntry& e : report.entries)
    if (e.verdict.ok()) u.times.push_back({e.backend, e.tactic, 10.25, 0.125, 5});
  u.chosen = u.untuned = u.times.front();
  return u;
}

std::string with_checksum(const std::string& body) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : body) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return fmt::format("mettle-tuning 1 {:016x}\n{}", h, body);
}

class TuningFile : public testing::Test {
 protected:
  json body() const { return json::parse(text_.substr(text_.find('\n') + 1)); }
  static std::string parsed(const std::string& text) {
    return message_of([&] { parse_tuning("F", text); });
  }
  // What a file with a right checksum says that differs here.
  std::string imported(const json& all) const {
    const std::string path = folder_.write("file", with_checksum(all.dump()));
    return message_of([&] { check_tuned(path, read_tuning(path, here_), report_); });
  }

  ProofReport report_ = proved_report();
  TuningIdentity here_ = tuning_identity(this_cpu(), 2);
  TunedUnit unit_ = unit_of(report_);
  std::string text_ = tuning_text({here_, {unit_}});
  TemporaryFolder folder_;
};

TEST_F(TuningFile, ReadsWhatWasWritten) {
  const Tuning t = parse_tuning("F", text_);
  EXPECT_TRUE(t.identity == here_);
  EXPECT_TRUE(same(t.units, {unit_}));
  EXPECT_EQ(imported(body()), "nothing thrown");
  EXPECT_TRUE(parse_tuning("F", tuning_text({here_, {}})).units.empty());
}

TEST_F(TuningFile, AnyDamageIsNamedAndOfTheKeptOneAMiss) {
  for (size_t cut = 0; cut < text_.size(); cut += 7) EXPECT_THAT(parsed(text_.substr(0, cut)), HasSubstr("F: is "));
  for (size_t at = 0; at < text_.size(); ++at) {
    std::string damaged = text_;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_THAT(parsed(damaged), HasSubstr("F: is ")) << at;
  }
  EXPECT_THAT(parsed("mettle-tuning 2 0\n{}"), HasSubstr("another version"));
  EXPECT_THAT(parsed(with_checksum("nonsense")), HasSubstr("no JSON"));
  EXPECT_THAT(parsed(with_checksum(std::string(100'000, '['))), HasSubstr("nested deeper"));
  EXPECT_THAT(parsed(std::string(size_t{17} << 20, ' ')), HasSubstr("at most"));
  EXPECT_THAT(message_of([&] { read_tuning(folder_ / "none", here_); }), HasSubstr("no such file"));
  EXPECT_THAT(message_of([&] { read_tuning(folder_.path(), here_); }), HasSubstr("is no file"));
  EXPECT_THAT(message_of([&] { read_tuning("/dev/zero", here_); }), HasSubstr("is no file"));

  TuningStore store(folder_.path(), here_);
  store.put(unit_);
  EXPECT_TRUE(same(store.load(), {unit_}));
  std::string kept = read_file(store.path(), 1 << 20);
  kept.resize(kept.size() - 2);
  write_file_atomically(store.path(), kept);
  EXPECT_TRUE(store.load().empty());
  store.put(unit_);  // written anew
  EXPECT_TRUE(same(store.load(), {unit_}));
  // A foreign one under this name.
  TuningIdentity other = here_;
  other.build = "another";
  write_file_atomically(store.path(), tuning_text({other, {unit_}}));
  EXPECT_TRUE(store.load().empty());
}

TEST_F(TuningFile, HostileValuesAreNamedWithTheirPlace) {
  const auto says = [&](const std::function<void(json&)>& change, const std::string& words) {
    json all = body();
    change(all);
    EXPECT_THAT(parsed(with_checksum(all.dump())), HasSubstr(words));
  };
  says([](json& j) { j = json::array(); }, "must be an object");
  says([](json& j) { j["more"] = 1; }, "unknown field \"more\"");
  says([](json& j) { j.erase("driver"); }, "has no \"driver\"");
  says([](json& j) { j["build"] = 3; }, "build: must be text");
  says([](json& j) { j["model"] = std::string(5'000, 'x'); }, "model: must be text of at most 2000");
  says([](json& j) { j["threads"] = -1; }, "threads: must be a whole number in 1..65536, got -1");
  says([](json& j) { j["threads"] = 1e300; }, "threads: must be a whole number");
  says([](json& j) { j["units"] = json::object(); }, "units: must be a list");
  says([](json& j) { j["units"] = json::array_t(10'001, j["units"][0]); }, "units: must be a list of at most 10000");
  says([](json& j) { j["units"].push_back(j["units"][0]); }, "units[1]: must be of a problem and row count");
  says([](json& j) { j["units"][0] = 7; }, "units[0]: must be an object");
  says([](json& j) { j["units"][0]["rows"] = 5; }, "units[0].rows: must be one of 1, 4, 16, 32, 64, 256, 512, got 5");
  says([](json& j) { j["units"][0]["rows"] = 1 << 30; }, "units[0].rows: must be a whole number in 1..512");
  says([](json& j) { j["units"][0]["outcome"] = "best"; }, "units[0].outcome: must be same, faster or kept");
  says([](json& j) { j["units"][0]["outcome"] = "faster"; }, "faster exactly when");
  says([](json& j) { j["units"][0]["chosen"]["tactic"] = "none"; }, "units[0].chosen: must be one of the tactics");
  says([](json& j) { j["units"][0]["times"].push_back(j["units"][0]["times"][0]); }, "not in the list already");
  says([](json& j) { j["units"][0]["times"] = json::array_t(300, j["units"][0]["times"][0]); }, "at most 256");
  const auto us = [&](const json& value, const std::string& words) {
    says([&](json& j) { j["units"][0]["times"][0]["us"] = value; }, "units[0].times[0].us: must be a number" + words);
  };
  us(-4, " in 1e-06..10000000000, got -4");
  us(0, " in 1e-06..10000000000, got 0");
  us(nullptr, " in 1e-06..10000000000, got null");  // how NaN and infinity are written
  us("fast", "");
  us(1e300, "");
  us(json::array(), " in 1e-06..10000000000, got array");
  says([](json& j) { j["units"][0]["times"][0]["noise"] = -0.5; }, "units[0].times[0].noise");
  says([](json& j) { j["units"][0]["times"][0]["samples"] = 2.5; }, "units[0].times[0].samples");
  // NaN itself is no JSON.
  std::string nan = body().dump();
  nan.replace(nan.find("10.25"), 5, "NaN");
  EXPECT_THAT(parsed(with_checksum(nan)), HasSubstr("no JSON"));
}

TEST_F(TuningFile, WhatIsForeignOrNotProvedIsRefusedByName) {
  const auto says = [&](const std::function<void(json&)>& change, const std::string& words) {
    json all = body();
    change(all);
    EXPECT_THAT(imported(all), HasSubstr(words));
  };
  says([](json& j) { j["build"] = "feed"; }, "another build of mettle: it has \"feed\"");
  says([](json& j) { j["device"] = "sm90"; }, "another device: it has \"sm90\", here is \"cpu\"");
  says([](json& j) { j["model"] = "a CPU"; }, "another device model");
  says([](json& j) { j["driver"] = "1"; }, "another driver");
  says([](json& j) { j["isas"] = "scalar"; }, "another set of instructions");
  says([](json& j) { j["threads"] = 64; }, "measured with 64 threads, here are 2: give --threads 64");
  says([](json& j) { j["units"][0]["problem"] = "linear 1->1 bf16 bf16"; }, "has no problem \"linear linear 1->1");
  says([](json& j) { j["units"][0]["op"] = "moe"; }, "has no problem \"moe ");
  says([](json& j) { j["units"][0]["times"][0]["backend"] = "cpu_best"; }, "must be one of the tactics in times");
  says(
      [](json& j) {
        for (const char* t : {"chosen", "untuned"}) j["units"][0][t]["backend"] = "cpu_best";
        j["units"][0]["times"][0]["backend"] = "cpu_best";
      },
      "linear has no backend \"cpu_best\" with tactic");
  says([](json& j) { j["units"][0]["untuned"] = j["units"][0]["times"][1], j["units"][0]["outcome"] = "faster"; },
       "nothing thrown");
  // Proved in the file, not here.
  for (ProofEntry& e : report_.entries)
    if (e.backend == unit_.chosen.backend && e.tactic == unit_.chosen.tactic)
      e.verdict = refuse(VerdictCode::kWrongOutput, "1", "2", "wrong by one");
  says([](json&) {}, fmt::format("{} {} is not proved here for {}: WRONG_OUTPUT, wrong by one", unit_.chosen.backend,
                                 unit_.chosen.tactic, kProblem.text()));
}

// A file beside the verdicts that somebody wrote by hand: right in form, and first in it what is not proved.
TEST_F(TuningFile, AKeptFileDoesNotMakeAnUnprovedTacticServe) {
  ProofReport report = report_;
  for (ProofEntry& e : report.entries)
    if (e.backend == "cpu_gemv") e.verdict = refuse(VerdictCode::kWrongOutput, "", "", "");
  for (TunedTime& t : unit_.times) t.us = t.backend == "cpu_gemv" ? 1e-6 : 1e6;
  for (size_t b = 0; b < kRowBuckets.size(); ++b) {
    unit_.bucket = b;
    for (const TunedTime& t : unit_.times) (t.backend == "cpu_gemv" ? unit_.chosen : unit_.untuned) = t;
    unit_.outcome = TuneOutcome::kFaster;
    TuningStore(folder_.path(), here_).put(unit_);
  }
  EXPECT_EQ(TuningStore(folder_.path(), here_).load().size(), kRowBuckets.size());
  ProofReport proved = report_;
  apply_tuning(folder_.path(), 2, proved);
  EXPECT_EQ(choose(proved, kProblem).at(1).backend->name, "cpu_gemv");  // while it is proved, that is the choice
  apply_tuning(folder_.path(), 2, report);
  for (const int rows : kRowBuckets) EXPECT_EQ(choose(report, kProblem).at(rows).backend->name, "cpu_gemm");
  // Nor does a run take it for an answer.
  TuneOptions options = options_in(folder_.path());
  options.child_argv = {"/bin/false"};
  EXPECT_THROW(tune(std::vector<AnyProblem>{kProblem}, report, options), Error);
}

// A choice of another machine's file is measured here beside the untuned one; nothing else is.
TEST_F(TuningFile, ImportedChoicesAreMeasuredAgain) {
  ProofReport report = report_;
  for (ProofEntry& e : report.entries)
    for (double& us : e.us) us = e.backend == "cpu_gemm" ? 5 : 500;  // so that the untuned choice is cpu_gemm's
  for (const TunedTime& t : unit_.times)
    if (t.backend == "cpu_gemv" && t.tactic == "scalar") unit_.chosen = t;
  unit_.outcome = TuneOutcome::kFaster;
  const std::vector<TunedUnit> given = {unit_};
  const TuneOptions options = options_in(folder_.path());
  const TuneResult result = tune(std::vector<AnyProblem>{kProblem}, report, options, &given);
  EXPECT_EQ(result.wanted, kRowBuckets.size());
  ASSERT_EQ(result.units.size(), 1u);
  const TunedUnit& u = result.units[0];
  EXPECT_EQ(u.bucket, unit_.bucket);
  EXPECT_EQ(u.untuned.backend, "cpu_gemm");
  EXPECT_NE(u.untuned.us, 10.25);
  size_t measured = 0;
  for (const TunedTime& t : u.times) measured += t.us != 10.25;
  EXPECT_EQ(measured, 2u);
  EXPECT_EQ(u.times.size(), unit_.times.size());
}

TEST(TuningStore, AFolderThatCannotBeWrittenIsOneWarning) {
  const TemporaryFolder folder;
  const std::string blocked = folder.write("file", "");
  const ProofReport report = proved_report();
  testing::internal::CaptureStderr();
  TuningStore store(blocked, tuning_identity(this_cpu(), 1));
  store.put(unit_of(report));
  store.put(unit_of(report));
  const std::string errors = testing::internal::GetCapturedStderr();
  EXPECT_THAT(errors, HasSubstr("not kept"));
  EXPECT_EQ(errors.find("not kept"), errors.rfind("not kept"));
}

}  // namespace
}  // namespace mettle
