#include "server/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/metrics.h"

namespace mettle {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ProofEntry entry(const char* backend, const char* tactic, VerdictCode code) {
  ProofEntry e{.op = "moe", .backend = backend, .tactic = tactic, .problem = "moe h64", .numerics = "h=bf16"};
  e.verdict = code == VerdictCode::kOk ? Verdict{} : refuse(code, "have \"3\"", "need 4", "row 7 is wrong");
  e.comparisons = 10;
  return e;
}

EngineInfo info() {
  EngineInfo i;
  i.model_name = "m";
  i.scratch_bytes = 11;
  i.kv_bytes = 22;
  i.state_bytes = 33;
  i.planned_bytes = 77;
  i.available_bytes = 99;
  i.proofs.device = "a cpu";
  i.proofs.entries = {entry("fast", "avx2", VerdictCode::kWrongOutput), entry("gemv", "avx2", VerdictCode::kOk),
                      entry("gemm", "avx2", VerdictCode::kOk), entry("gemm", "scalar", VerdictCode::kIsaMissing)};
  return i;
}

ServingPlan serving() {
  ServedProblem p{.op = "moe", .problem = "moe h64"};
  for (size_t b = 0; b < p.by_bucket.size(); ++b) {
    p.by_bucket[b] = {b < 2 ? "gemv" : "gemm", "avx2"};
    p.behind[b] = {{b < 2 ? "gemm" : "gemv", "avx2"}, {"reference", "scalar"}};
  }
  return {.guard = Guard::kSpot, .guard_limit = 3, .problems = {p}};
}

TEST(PlanJson, SaysWhatServesWhatWouldAndWhyTheRestDoesNot) {
  EngineInfo of = info();
  of.proofs.entries[1].timed_from_cache = true;
  const auto plan = plan_json("m", of, {}, serving());
  EXPECT_EQ(plan["status"], "ready");
  EXPECT_EQ(plan["proofs"][0]["timed_from_cache"], false);
  EXPECT_EQ(plan["proofs"][1]["timed_from_cache"], true);
  const auto& buckets = plan["problems"][0]["buckets"];
  ASSERT_EQ(buckets.size(), kRowBuckets.size());
  EXPECT_EQ(buckets[0]["rows_up_to"], 1);
  EXPECT_EQ(buckets[0]["backend"], "gemv");
  EXPECT_EQ(buckets[0]["behind"][0]["backend"], "gemm");
  EXPECT_EQ(buckets[0]["behind"][1]["backend"], "reference");
  EXPECT_EQ(buckets[2]["backend"], "gemm");
  EXPECT_TRUE(buckets.back()["rows_up_to"].is_null());
  const auto& wrong = plan["proofs"][0];
  EXPECT_EQ(wrong["verdict"], "WRONG_OUTPUT");
  EXPECT_EQ(wrong["have"], "have \"3\"");
  EXPECT_EQ(wrong["need"], "need 4");
  EXPECT_EQ(wrong["sentence"], "row 7 is wrong");
  EXPECT_EQ(wrong["remedy"], info_of(VerdictCode::kWrongOutput).remedy);
  EXPECT_TRUE(wrong["serves"].empty());
  EXPECT_EQ(plan["proofs"][1]["serves"], nlohmann::ordered_json::parse("[1, 4]"));
  EXPECT_EQ(plan["proofs"][2]["serves"], nlohmann::ordered_json::parse("[16, 32, 64, 256, null]"));
  EXPECT_EQ(plan["memory"]["scratch_bytes"], 11);
  EXPECT_EQ(plan["memory"]["kv_bytes"], 22);
  EXPECT_EQ(plan["memory"]["state_bytes"], 33);
  EXPECT_EQ(plan["memory"]["planned_bytes"], 77);
  EXPECT_EQ(plan["memory"]["available_bytes"], 99);
  EXPECT_EQ(plan["guard"]["mode"], "spot");
  EXPECT_EQ(plan["dense_dtype"], "auto");
  EXPECT_EQ(plan["kv_cache_dtype"], "bf16");
  EngineInfo fp8 = info();
  fp8.dense = DenseDtype::kFp8;
  fp8.requantised = 7;
  fp8.kv_cache = DType::kE4M3;
  fp8.attention_layers = 5;
  fp8.scaled_layers = 3;
  const auto told = plan_json("m", fp8, {}, serving());
  EXPECT_EQ(told["dense_dtype"], "fp8");
  EXPECT_EQ(told["requantised"], 7);
  EXPECT_EQ(told["kv_cache_dtype"], "fp8_e4m3");
  EXPECT_EQ(told["kv_scaled_layers"], 3);
  EXPECT_EQ(told["attention_layers"], 5);
}

TEST(PlanJson, QuarantinesAreTold) {
  ServingPlan s = serving();
  s.events = {{"moe", "gemv", 4, 3}};
  s.quarantines = {{"moe", "gemv", "three \"steps\""}};
  EngineStats stats{.nonfinite_rows = 5};
  const auto plan = plan_json("m", info(), stats, s);
  EXPECT_EQ(plan["status"], "degraded");
  EXPECT_EQ(plan["guard"]["quarantined"][0]["why"], "three \"steps\"");
  EXPECT_EQ(plan["guard"]["events"][0]["events"], 4);
  EXPECT_EQ(plan["guard"]["nonfinite_rows"], 5);
  EXPECT_EQ(plan["proofs"][1]["quarantined"], true);
  EXPECT_EQ(plan["proofs"][2]["quarantined"], false);
  stats.healthy = false;
  EXPECT_EQ(plan_json("m", info(), stats, s)["status"], "dead");

  const std::string metrics = Metrics().text(info(), stats, s, 0);
  for (const char* line :
       {"mettle_nonfinite_rows_total 5\n", "mettle_guard_events_total{op=\"moe\",backend=\"gemv\"} 4\n",
        "mettle_quarantined{op=\"moe\",backend=\"gemv\"} 1\n", "mettle_degraded 1\n",
        "mettle_serving{op=\"moe\",problem=\"moe h64\",rows=\"1\",backend=\"gemv\",tactic=\"avx2\"} 1\n",
        "mettle_serving{op=\"moe\",problem=\"moe h64\",rows=\"+Inf\",backend=\"gemm\",tactic=\"avx2\"} 1\n",
        "mettle_candidates{op=\"moe\",backend=\"fast\",verdict=\"WRONG_OUTPUT\"} 1\n",
        "mettle_candidates{op=\"moe\",backend=\"gemm\",verdict=\"OK\"} 1\n"})
    EXPECT_THAT(metrics, HasSubstr(line));
  EXPECT_THAT(Metrics().text(info(), {}, serving(), 0), HasSubstr("mettle_degraded 0\n"));
  EXPECT_THAT(Metrics().text(info(), {}, serving(), 0), Not(HasSubstr("mettle_quarantined{")));
}

}  // namespace
}  // namespace mettle
