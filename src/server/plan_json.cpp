#include "server/plan_json.h"

#include <algorithm>

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

Json served_json(const Served& s) { return {{"backend", s.backend}, {"tactic", s.tactic}}; }

bool quarantined(const ServingPlan& serving, const std::string& op, const std::string& backend) {
  return std::any_of(serving.quarantines.begin(), serving.quarantines.end(),
                     [&](const Quarantine& q) { return q.op == op && q.backend == backend; });
}

// The largest row count of a bucket; null for the last, which has no end.
Json bound_of(size_t bucket) {
  if (bucket + 1 == kRowBuckets.size()) return nullptr;
  return kRowBuckets[bucket];
}

Json problem_json(const ServedProblem& p) {
  Json buckets = Json::array();
  for (size_t b = 0; b < p.by_bucket.size(); ++b) {
    Json behind = Json::array();
    for (const Served& s : p.behind[b]) behind.push_back(served_json(s));
    buckets.push_back({{"rows_up_to", bound_of(b)},
                       {"backend", p.by_bucket[b].backend},
                       {"tactic", p.by_bucket[b].tactic},
                       {"behind", std::move(behind)}});
  }
  return {{"op", p.op}, {"problem", p.problem}, {"buckets", std::move(buckets)}};
}

Json proof_json(const ProofEntry& e, const ServingPlan& serving) {
  Json us = Json::array(), serves = Json::array();
  for (const double v : e.us) us.push_back(v);
  for (const ServedProblem& p : serving.problems)
    for (size_t b = 0; b < p.by_bucket.size(); ++b)
      if (p.problem == e.problem && p.by_bucket[b] == Served{e.backend, e.tactic}) serves.push_back(bound_of(b));
  return {{"op", e.op},
          {"backend", e.backend},
          {"tactic", e.tactic},
          {"problem", e.problem},
          {"numerics", e.numerics},
          {"verdict", name_of(e.verdict.code)},
          {"have", e.verdict.have},
          {"need", e.verdict.need},
          {"sentence", e.verdict.sentence},
          {"remedy", e.verdict.remedy},
          {"serves", std::move(serves)},
          {"quarantined", quarantined(serving, e.op, e.backend)},
          {"max_error", e.max_error},
          {"bound", e.bound},
          {"comparisons", e.comparisons},
          {"cases", e.cases},
          {"us", std::move(us)},
          {"timed_from_cache", e.timed_from_cache}};
}

Json guard_json(const EngineStats& stats, const ServingPlan& serving) {
  Json events = Json::array();
  for (const GuardEvents& e : serving.events)
    events.push_back({{"op", e.op}, {"backend", e.backend}, {"events", e.events}, {"counted", e.counted}});
  return {{"mode", name_of(serving.guard)},       {"limit", serving.guard_limit},
          {"watched_steps", stats.watched_steps}, {"nonfinite_rows", stats.nonfinite_rows},
          {"spot_proofs", stats.spot_proofs},     {"spot_failures", stats.spot_failures},
          {"events", std::move(events)},          {"quarantined", quarantines_json(serving)}};
}

}  // namespace

std::string_view kv_cache_name(const EngineInfo& info) {
  return info.kv_cache == DType::kE4M3 ? name_of(CacheFormat::kE4M3) : name_of(info.kv_cache);
}

Json quarantines_json(const ServingPlan& serving) {
  Json out = Json::array();
  for (const Quarantine& q : serving.quarantines) out.push_back({{"op", q.op}, {"backend", q.backend}, {"why", q.why}});
  return out;
}

Json plan_json(const std::string& model, const EngineInfo& info, const EngineStats& stats, const ServingPlan& serving) {
  Json problems = Json::array(), proofs = Json::array();
  for (const ServedProblem& p : serving.problems) problems.push_back(problem_json(p));
  for (const ProofEntry& e : info.proofs.entries) proofs.push_back(proof_json(e, serving));
  const char* status = !stats.healthy ? "dead" : serving.quarantines.empty() ? "ready" : "degraded";
  return {{"model", model},
          {"status", status},
          {"architecture", info.architecture},
          {"activation", name_of(info.activation)},
          {"dense_dtype", name_of(info.dense)},
          {"requantised", info.requantised},
          {"kv_cache_dtype", kv_cache_name(info)},
          {"kv_scaled_layers", info.scaled_layers},
          {"attention_layers", info.attention_layers},
          {"tp_size", info.tp_size},
          {"threads", info.threads},
          {"context_length", info.context_length},
          {"memory",
           {{"weight_bytes", info.weight_bytes},
            {"scratch_bytes", info.scratch_bytes},
            {"kv_bytes", info.kv_bytes},
            {"state_bytes", info.state_bytes},
            {"planned_bytes", info.planned_bytes},
            {"available_bytes", info.available_bytes},
            {"blocks", info.blocks},
            {"block_size", info.block_size},
            {"state_slots", info.state_slots}}},
          {"device", info.proofs.device},
          {"build", info.proofs.build},
          {"guard", guard_json(stats, serving)},
          {"problems", std::move(problems)},
          {"proofs", std::move(proofs)},
          {"plan", info.plan}};
}

}  // namespace mettle
