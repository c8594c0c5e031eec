#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "prove/candidates.h"
#include "prove/prover.h"

namespace mettle {
namespace {

template <class Op>
struct Proved {
  Choice<Op> choice;
  const ProofEntry* entry = nullptr;
  bool reference = false;

  double us(size_t bucket) const { return us_at(*entry, bucket); }
};

// The proved candidates in the order of the op's list; a tactic's place in its backend's list rises with its ISA.
template <class Problem, class Op = OpOf<Problem>>
std::vector<Proved<Op>> proved_of(const ProofReport& report, const Problem& problem, const std::string& named,
                                  std::span<const Backend<Op>* const> backends) {
  std::vector<Proved<Op>> out;
  const Device& device = report.where;
  const std::string text = problem.text();
  for (const Backend<Op>* backend : backends) {
    if (backend->kind != device.kind) continue;
    if (!named.empty() && backend->name != named) continue;
    // What has no proof is not even asked: it may throw at the question.
    if (std::none_of(report.entries.begin(), report.entries.end(), [&](const ProofEntry& e) {
          return e.problem == text && e.backend == backend->name && e.verdict.ok();
        }))
      continue;
    if (!backend->supports(problem, device).ok()) continue;
    for (const Tactic& tactic : backend->tactics(problem, device)) {
      const ProofEntry* e = report.find(text, backend->name, tactic.name);
      if (e != nullptr && e->verdict.ok()) out.push_back({{backend, tactic}, e, backend->name == "reference"});
    }
  }
  return out;
}

template <class Op>
bool better(const Proved<Op>& one, const Proved<Op>& other, size_t bucket) {
  if (one.reference != other.reference) return other.reference;
  const double us = one.us(bucket), other_us = other.us(bucket);
  if (us > 0 && other_us > 0) return us < other_us;
  // Without times: the first backend of the list, its last tactic.
  return us > 0 || (other_us == 0 && one.choice.backend == other.choice.backend);
}

// Weights are packed once, so the backends that share a server read one layout: that of the best single choice, the
// tactic whose times over all buckets multiply to the least. What is chosen per bucket is then never slower than it.
// The reference reads every layout and has no say; without times the first backend of the list has it.
template <class Op>
void keep_one_layout(std::vector<Proved<Op>>& proved) {
  const Proved<Op>* best = nullptr;
  double best_product = 0;
  for (const Proved<Op>& p : proved) {
    if (p.reference) continue;
    double product = 1;
    bool timed = true;
    for (size_t b = 0; b < kRowBuckets.size(); ++b) {
      timed = timed && p.us(b) > 0;
      product *= p.us(b);
    }
    if (!timed) product = std::numeric_limits<double>::infinity();
    if (best != nullptr && !(product < best_product)) continue;
    best = &p;
    best_product = product;
  }
  if (best == nullptr) return;
  const Layout layout = best->choice.backend->layout;
  std::erase_if(proved, [&](const Proved<Op>& p) { return !p.reference && p.choice.backend->layout != layout; });
}

// Each backend's best tactic of a bucket, best backend first; the reference is the last.
template <class Op>
std::vector<Choice<Op>> ranked(const std::vector<Proved<Op>>& proved, size_t bucket) {
  std::vector<const Proved<Op>*> best;
  for (const Proved<Op>& p : proved) {
    const auto same = [&](const Proved<Op>* b) { return b->choice.backend == p.choice.backend; };
    const auto at = std::find_if(best.begin(), best.end(), same);
    if (at == best.end())
      best.push_back(&p);
    else if (better(p, **at, bucket))
      *at = &p;
  }
  std::stable_sort(best.begin(), best.end(),
                   [&](const Proved<Op>* a, const Proved<Op>* b) { return better(*a, *b, bucket); });
  std::vector<Choice<Op>> out;
  for (const Proved<Op>* p : best) out.push_back(p->choice);
  return out;
}

std::string candidates_of(const ProofReport& report, const std::string& problem) {
  std::string text;
  for (const ProofEntry& e : report.entries)
    if (e.problem == problem)
      text += fmt::format("\n  {} {}: {}{}{}", e.backend, e.tactic, name_of(e.verdict.code),
                          e.verdict.sentence.empty() ? "" : ", ", e.verdict.sentence);
  return text.empty() ? "\n  none was proved" : text;
}

}  // namespace

double us_at(const ProofEntry& entry, size_t bucket) {
  for (size_t b = bucket + 1; b-- > 0;)
    if (entry.us[b] > 0) return entry.us[b] * kRowBuckets[bucket] / kRowBuckets[b];
  return 0;
}

template <class Problem>
Choices<OpOf<Problem>> choose(const ProofReport& report, const Problem& problem, const std::string& named) {
  return choose_among(report, problem, named, backends_of<OpOf<Problem>>());
}

template <class Problem>
Choices<OpOf<Problem>> choose_among(const ProofReport& report, const Problem& problem, const std::string& named,
                                    std::span<const Backend<OpOf<Problem>>* const> backends) {
  using Op = OpOf<Problem>;
  std::vector<Proved<Op>> proved = proved_of(report, problem, named, backends);
  if (proved.empty())
    fail(Code::kUnsupported,
         fmt::format("{}: {} is proved here; candidates for {}:{}", Op::kName,
                     named.empty() ? "no backend"
                                   : fmt::format("backend \"{}\", which was asked for by name, is not what", named),
                     problem.text(), candidates_of(report, problem.text())));
  const bool last_resort = std::all_of(proved.begin(), proved.end(), [](const auto& p) { return p.reference; });
  // Loud only where a faster backend was meant to serve.
  if (last_resort && named.empty()) {
    if (std::count_if(backends.begin(), backends.end(), [&](const auto* b) { return b->kind == report.where.kind; }) >
        1)
      log::warn("prove: {} runs on its reference backend, which is slow: no other was proved:{}", Op::kName,
                candidates_of(report, problem.text()));
    else
      log::info("prove: {} runs on its reference backend: it has no other", Op::kName);
  }
  keep_one_layout(proved);
  Choices<Op> choices;
  for (size_t b = 0; b < kRowBuckets.size(); ++b) {
    std::vector<Choice<Op>> rank = ranked(proved, b);
    choices.by_bucket[b] = rank.front();
    rank.erase(rank.begin());
    choices.behind[b] = std::move(rank);
  }
  return choices;
}

void warn_of_failures(const ProofReport& report) {
  const ProofEntry* last = nullptr;
  for (const ProofEntry& e : report.entries) {
    if (e.verdict.ok() || (info_of(e.verdict.code).refusal && e.verdict.code != VerdictCode::kUnproved)) continue;
    if (last != nullptr && last->backend == e.backend && last->problem == e.problem) continue;
    last = &e;
    log::warn("prove: {} {} failed its proof and does not serve {}: {}, {}", e.backend, e.tactic, e.problem,
              name_of(e.verdict.code), e.verdict.sentence);
  }
}

void warn_of_times(const ProofReport& report) {
  std::vector<std::string_view> ops;
  for (const ProofEntry& e : report.entries)
    if (e.timed_from_cache && std::find(ops.begin(), ops.end(), e.op) == ops.end()) ops.emplace_back(e.op);
  if (ops.empty()) return;
  log::warn(
      "prove: {}: timed from the caches of {}, which has no room for copies of the weights beside its other users; "
      "what serves fastest may not have been chosen, and the next start times anew",
      fmt::join(ops, ", "), report.device);
}

#define METTLE_CHOOSE(Problem)                                                                                  \
  template Choices<OpOf<Problem>> choose<Problem>(const ProofReport&, const Problem&, const std::string&);      \
  template Choices<OpOf<Problem>> choose_among<Problem>(const ProofReport&, const Problem&, const std::string&, \
                                                        std::span<const Backend<OpOf<Problem>>* const>);
METTLE_CHOOSE(EmbedProblem)
METTLE_CHOOSE(JoinProblem)
METTLE_CHOOSE(LinearProblem)
METTLE_CHOOSE(MoeProblem)
METTLE_CHOOSE(AttentionProblem)
METTLE_CHOOSE(GdnProblem)
METTLE_CHOOSE(SampleProblem)

}  // namespace mettle
