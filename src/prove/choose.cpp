#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "prove/prover.h"

namespace mettle {
namespace {

template <class Op>
struct Proved {
  Choice<Op> choice;
  const ProofEntry* entry = nullptr;
  bool reference = false;

  // Time at a bucket; a bucket that was not timed, because it took too long, is reckoned from the last that was.
  double us(size_t bucket) const {
    for (size_t b = bucket + 1; b-- > 0;)
      if (entry->us[b] > 0) return entry->us[b] * kRowBuckets[bucket] / kRowBuckets[b];
    return 0;
  }
};

// The proved candidates in the order of the op's list; a tactic's place in its backend's list rises with its ISA.
template <class Problem, class Op = OpOf<Problem>>
std::vector<Proved<Op>> proved_of(const ProofReport& report, const Problem& problem, const std::string& named) {
  std::vector<Proved<Op>> out;
  const Device& device = report.where;
  const std::string text = problem.text();
  for (const Backend<Op>* backend : backends_of<Op>()) {
    if (backend->kind != device.kind) continue;
    if (!named.empty() && backend->name != named) continue;
    if (!backend->supports(problem, device).ok()) continue;
    for (const Tactic& tactic : backend->tactics(problem, device)) {
      const ProofEntry* e = report.find(text, backend->name, tactic.name);
      if (e != nullptr && e->verdict.ok()) out.push_back({{backend, tactic}, e, backend->name == "reference"});
    }
  }
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

template <class Problem>
Choices<OpOf<Problem>> choose(const ProofReport& report, const Problem& problem, const std::string& named) {
  using Op = OpOf<Problem>;
  std::vector<Proved<Op>> proved = proved_of(report, problem, named);
  if (proved.empty())
    fail(Code::kUnsupported,
         fmt::format("{}: {} is proved here; candidates for {}:{}", Op::kName,
                     named.empty() ? "no backend"
                                   : fmt::format("backend \"{}\", which was asked for by name, is not what", named),
                     problem.text(), candidates_of(report, problem.text())));
  const bool last_resort = std::all_of(proved.begin(), proved.end(), [](const auto& p) { return p.reference; });
  if (!last_resort) std::erase_if(proved, [](const auto& p) { return p.reference; });
  // Loud only where a faster backend was meant to serve.
  if (last_resort && named.empty()) {
    const auto all = backends_of<Op>();
    if (std::count_if(all.begin(), all.end(), [&](const auto* b) { return b->kind == report.where.kind; }) > 1)
      log::warn("prove: {} runs on its reference backend, which is slow: no other was proved:{}", Op::kName,
                candidates_of(report, problem.text()));
    else
      log::info("prove: {} runs on its reference backend: it has no other", Op::kName);
  }
  Choices<Op> choices;
  for (size_t b = 0; b < kRowBuckets.size(); ++b) {
    const Proved<Op>* best = nullptr;
    for (const Proved<Op>& p : proved) {
      if (best == nullptr) {
        best = &p;
        continue;
      }
      const double us = p.us(b), best_us = best->us(b);
      // Without times: the first backend of the list, its last tactic.
      const bool better = us > 0 && best_us > 0 ? us < best_us
                          : us > 0              ? true
                                                : best_us == 0 && p.choice.backend == best->choice.backend;
      if (better) best = &p;
    }
    choices.by_bucket[b] = best->choice;
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

#define METTLE_CHOOSE(Problem) \
  template Choices<OpOf<Problem>> choose<Problem>(const ProofReport&, const Problem&, const std::string&);
METTLE_CHOOSE(EmbedProblem)
METTLE_CHOOSE(JoinProblem)
METTLE_CHOOSE(LinearProblem)
METTLE_CHOOSE(MoeProblem)
METTLE_CHOOSE(AttentionProblem)
METTLE_CHOOSE(GdnProblem)
METTLE_CHOOSE(SampleProblem)

}  // namespace mettle
