#include "server/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace mettle {
namespace {

void head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  fmt::format_to(std::back_inserter(out), "# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

template <class V>
void line(std::string& out, std::string_view name, std::string_view type, std::string_view help, V value) {
  head(out, name, type, help);
  fmt::format_to(std::back_inserter(out), "{} {}\n", name, value);
}

std::string escaped(std::string_view label) {
  std::string out;
  for (const char c : label) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? std::string_view("\\n") : std::string_view(&c, 1);
  }
  return out;
}

void guard_text(std::string& out, const EngineStats& s, const ServingPlan& serving) {
  line(out, "mettle_guard_watched_steps_total", "counter", "Steps of which every op's output was looked at.",
       s.watched_steps);
  head(out, "mettle_guard_events_total", "counter",
       "Steps in which a backend was the first to give a value that is not finite.");
  for (const GuardEvents& e : serving.events)
    fmt::format_to(std::back_inserter(out), "mettle_guard_events_total{{op=\"{}\",backend=\"{}\"}} {}\n", escaped(e.op),
                   escaped(e.backend), e.events);
  head(out, "mettle_guard_spot_proofs_total", "counter", "Proofs run again in idle moments, by outcome.");
  fmt::format_to(std::back_inserter(out),
                 "mettle_guard_spot_proofs_total{{outcome=\"passed\"}} {}\n"
                 "mettle_guard_spot_proofs_total{{outcome=\"failed\"}} {}\n",
                 s.spot_proofs, s.spot_failures);
  head(out, "mettle_quarantined", "gauge", "1 for a backend that may not serve any more.");
  for (const Quarantine& q : serving.quarantines)
    fmt::format_to(std::back_inserter(out), "mettle_quarantined{{op=\"{}\",backend=\"{}\"}} 1\n", escaped(q.op),
                   escaped(q.backend));
  line(out, "mettle_degraded", "gauge", "1 when a backend is quarantined.", serving.quarantines.empty() ? 0 : 1);
}

// What serves, and how many (problem, tactic) pairs of each backend got which verdict.
void backends_text(std::string& out, const EngineInfo& info, const ServingPlan& serving) {
  head(out, "mettle_serving", "gauge", "1 for the backend and tactic that serve an op's problem up to so many rows.");
  for (const ServedProblem& p : serving.problems)
    for (size_t b = 0; b < p.by_bucket.size(); ++b)
      fmt::format_to(std::back_inserter(out),
                     "mettle_serving{{op=\"{}\",problem=\"{}\",rows=\"{}\",backend=\"{}\",tactic=\"{}\"}} 1\n",
                     escaped(p.op), escaped(p.problem),
                     b + 1 < p.by_bucket.size() ? std::to_string(kRowBuckets[b]) : "+Inf",
                     escaped(p.by_bucket[b].backend), escaped(p.by_bucket[b].tactic));
  std::map<std::array<std::string, 3>, int> counts;
  for (const ProofEntry& e : info.proofs.entries) ++counts[{e.op, e.backend, std::string(name_of(e.verdict.code))}];
  head(out, "mettle_candidates", "gauge", "Candidates of the plan (problem and tactic) by verdict.");
  for (const auto& [key, count] : counts)
    fmt::format_to(std::back_inserter(out), "mettle_candidates{{op=\"{}\",backend=\"{}\",verdict=\"{}\"}} {}\n",
                   escaped(key[0]), escaped(key[1]), key[2], count);
}

int64_t resident_bytes() {
  long pages = 0;
  if (FILE* f = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
    std::fclose(f);
  }
  return pages * sysconf(_SC_PAGESIZE);
}

}  // namespace

void Histogram::observe(double seconds) {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  nanoseconds_.fetch_add(static_cast<uint64_t>(std::max(0.0, seconds) * 1e9), std::memory_order_relaxed);
}

void Histogram::print(std::string& out, std::string_view name, std::string_view help) const {
  head(out, name, "histogram", help);
  uint64_t total = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    total += counts_[i].load(std::memory_order_relaxed);
    fmt::format_to(std::back_inserter(out), "{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], total);
  }
  total += counts_.back().load(std::memory_order_relaxed);
  fmt::format_to(std::back_inserter(out), "{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, total,
                 static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9);
}

void Metrics::count_answer(std::string_view route, int status) {
  const std::lock_guard lock(mutex_);
  ++answers_[{std::string(route), status}];
}

std::string Metrics::text(const EngineInfo& info, const EngineStats& s, const ServingPlan& serving,
                          int64_t connections) const {
  std::string out;
  head(out, "mettle_model_info", "gauge", "The served model.");
  fmt::format_to(std::back_inserter(out), "mettle_model_info{{model=\"{}\",architecture=\"{}\"}} 1\n",
                 escaped(info.model_name), escaped(info.architecture));
  line(out, "mettle_requests_running", "gauge", "Sequences in the running batch.", s.running);
  line(out, "mettle_requests_waiting", "gauge", "Sequences that wait for a place.", s.waiting);
  line(out, "mettle_requests_accepted_total", "counter", "Sequences taken in.", s.requests_accepted);
  head(out, "mettle_requests_ended_total", "counter", "Sequences ended, by outcome.");
  fmt::format_to(std::back_inserter(out),
                 "mettle_requests_ended_total{{outcome=\"finished\"}} {}\n"
                 "mettle_requests_ended_total{{outcome=\"failed\"}} {}\n"
                 "mettle_requests_ended_total{{outcome=\"cancelled\"}} {}\n",
                 s.requests_finished, s.requests_failed, s.requests_cancelled);
  line(out, "mettle_prompt_tokens_total", "counter", "Prompt tokens processed.", s.prompt_tokens);
  line(out, "mettle_generation_tokens_total", "counter", "Tokens generated.", s.generated_tokens);
  line(out, "mettle_steps_total", "counter", "Steps of the engine.", s.steps);
  line(out, "mettle_step_seconds_total", "counter", "Seconds inside steps.", s.busy_seconds);
  line(out, "mettle_preemptions_total", "counter", "Sequences sent back to wait for lack of blocks.", s.preemptions);
  line(out, "mettle_nonfinite_rows_total", "counter", "Sequences ended because a value was not finite.",
       s.nonfinite_rows);
  guard_text(out, s, serving);
  backends_text(out, info, serving);
  line(out, "mettle_cache_blocks_used", "gauge", "Paged blocks in use.", s.blocks_used);
  line(out, "mettle_cache_blocks", "gauge", "Paged blocks.", s.blocks_total);
  line(out, "mettle_state_slots_used", "gauge", "Recurrent state slots in use.", s.slots_used);
  line(out, "mettle_state_slots", "gauge", "Recurrent state slots.", s.slots_total);
  line(out, "mettle_healthy", "gauge", "1 while the engine works.", s.healthy ? 1 : 0);
  time_to_first_token.print(out, "mettle_time_to_first_token_seconds", "From taking a sequence in to its first token.");
  inter_token_latency.print(out, "mettle_inter_token_latency_seconds", "Between two tokens of a sequence.");
  request_duration.print(out, "mettle_request_duration_seconds", "From taking a sequence in to its end.");
  {
    const std::lock_guard lock(mutex_);
    head(out, "mettle_http_answers_total", "counter", "HTTP answers by route and status.");
    for (const auto& [key, count] : answers_)
      fmt::format_to(std::back_inserter(out), "mettle_http_answers_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first,
                     key.second, count);
  }
  line(out, "mettle_http_connections", "gauge", "Open connections.", connections);
  line(out, "process_resident_memory_bytes", "gauge", "Resident memory of this process.", resident_bytes());
  return out;
}

}  // namespace mettle
