// Which backends are proved: the program's own lists, or others that a test plants.
#pragma once
#include <tuple>
#include <vector>

#include "base/error.h"
#include "ops/problem.h"
#include "prove/prover.h"

namespace mettle {

struct Candidates {
  std::tuple<std::vector<const Backend<EmbedOp>*>, std::vector<const Backend<JoinOp>*>,
             std::vector<const Backend<LinearOp>*>, std::vector<const Backend<MoeOp>*>,
             std::vector<const Backend<AttentionOp>*>, std::vector<const Backend<GdnOp>*>,
             std::vector<const Backend<SampleOp>*>>
      lists;

  template <class Op>
  std::vector<const Backend<Op>*>& of() {
    return std::get<std::vector<const Backend<Op>*>>(lists);
  }
  template <class Op>
  const std::vector<const Backend<Op>*>& of() const {
    return std::get<std::vector<const Backend<Op>*>>(lists);
  }
  static Candidates all();  // backends_of every op
};

// The device's backend of that name and its tactic of that name. Fails with kInternal when there is none.
template <class Op>
Choice<Op> candidate_named(const Candidates& candidates, const typename Op::Problem& problem, const Device& device,
                           const std::string& backend, const std::string& tactic) {
  for (const Backend<Op>* b : candidates.of<Op>()) {
    if (b->name != backend || b->kind != device.kind) continue;
    for (const Tactic& t : b->tactics(problem, device))
      if (t.name == tactic) return {b, t};
  }
  fail(Code::kInternal, "child: no backend \"" + backend + "\" with tactic \"" + tactic + "\" for " + problem.text());
}

// What stands between each backend of the device's kind and serving the problem, by its own supports() and tactics():
// an entry for each refusal, and one with UNPROVED for each tactic that only lacks its proof. Pure: for any device,
// present or not.
std::vector<ProofEntry> list_candidates(const AnyProblem& problem, const Device& device, const Candidates& candidates);

// choose() among these backends, in this order.
template <class Problem>
Choices<OpOf<Problem>> choose_among(const ProofReport& report, const Problem& problem, const std::string& named,
                                    std::span<const Backend<OpOf<Problem>>* const> backends);

ProofReport prove(std::span<const AnyProblem> problems, const ProveOptions& options, const Candidates& candidates);
int prove_child(const Candidates& candidates);

}  // namespace mettle
