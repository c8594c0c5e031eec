// Backends broken on purpose, for tests: each computes with the reference and then does one thing wrong.
#pragma once
#include <string_view>
#include <vector>

#include "prove/candidates.h"

namespace mettle {

struct Mutant {
  std::string_view op, name;
  VerdictCode code;  // that must be found
};

// All of them, for the child.
Candidates mutant_candidates();
std::vector<Mutant> mutants();

}  // namespace mettle
