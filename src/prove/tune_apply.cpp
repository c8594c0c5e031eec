// Tuned times in a proof report: what choose() then takes.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "prove/tune.h"
#include "prove/tune_store.h"

namespace mettle {

bool clearly_faster(const TunedTime& other, const TunedTime& untuned) {
  constexpr double kLeastGain = 0.01;
  constexpr double kOfMedian = 1.2533;  // standard error of a median, of a normal distribution's mean
  const auto error = [](const TunedTime& t) { return kOfMedian * t.noise * t.us / std::sqrt(std::max(t.samples, 1)); };
  const double gain = untuned.us - other.us;
  return gain > kLeastGain * untuned.us && gain > 2 * std::hypot(error(other), error(untuned));
}

void apply_units(std::span<const TunedUnit> units, ProofReport& report) {
  std::vector<const TunedUnit*> sorted;
  for (const TunedUnit& u : units) sorted.push_back(&u);
  // A bucket that was not timed is reckoned from those before it.
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const TunedUnit* a, const TunedUnit* b) { return a->bucket < b->bucket; });
  const auto entry_of = [&](const TunedUnit& u, const TunedTime& t) -> ProofEntry* {
    for (ProofEntry& e : report.entries)
      if (e.op == u.op && e.problem == u.problem && e.backend == t.backend && e.tactic == t.tactic)
        return e.verdict.ok() ? &e : nullptr;
    return nullptr;
  };
  std::map<std::pair<std::string_view, std::string_view>, std::set<size_t>> applied;  // buckets of an op's problem
  for (const TunedUnit* u : sorted) {
    ProofEntry* chosen = entry_of(*u, u->chosen);
    if (chosen == nullptr || u->bucket >= kRowBuckets.size()) continue;
    applied[{u->op, u->problem}].insert(u->bucket);
    for (const TunedTime& t : u->times)
      if (ProofEntry* e = entry_of(*u, t); e != nullptr) e->us[u->bucket] = t.us;
    chosen->us[u->bucket] = u->chosen.us;
    // The choice was made on a comparison of its own: no other time may undo it.
    for (ProofEntry& e : report.entries) {
      if (&e == chosen || e.op != u->op || e.problem != u->problem || !e.verdict.ok()) continue;
      const double us = us_at(e, u->bucket);
      if (us > 0 && us <= u->chosen.us) e.us[u->bucket] = std::nextafter(u->chosen.us, 1e300);
    }
  }
  for (ProofEntry& e : report.entries)  // no choice rests on the proof's own times any more
    if (applied[{e.op, e.problem}].size() == kRowBuckets.size()) e.timed_from_cache = false;
}

void apply_tuning(const std::string& cache_folder, int threads, ProofReport& report) {
  const std::vector<TunedUnit> units = TuningStore(cache_folder, tuning_identity(report.where, threads)).load();
  if (!units.empty()) apply_units(units, report);
}

}  // namespace mettle
