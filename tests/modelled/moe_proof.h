// The cases of moe's proof for a modelled backend, judged by the oracle under the routing that it chose.
#pragma once
#include <functional>

#include "ops/moe.h"

namespace modelled {

struct Moe {
  std::function<void(const mettle::MoeArgs&)> run;
  std::function<size_t(const mettle::MoeProblem&, int rows)> workspace;
  int most_rows = 1 << 20;       // cases of more are left out
  uint64_t comparisons = 2'000;  // at least, or the cases say too little
};
void prove(const Moe& backend, const mettle::MoeProblem& problem, int budget);

}  // namespace modelled
