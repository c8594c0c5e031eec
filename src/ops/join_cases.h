// Cases of join: typical, tiny (epsilon matters), large, outliers, zeros, and exact ones in which the root is a power
// of two.
#pragma once
#include <string>
#include <vector>

#include "ops/case_weights.h"
#include "ops/join.h"

namespace mettle {

struct JoinCase {
  std::string kind;
  int rows = 0;
  bool exact = false, generic = false;
  bool zero = false;                // the outputs are zero
  CaseInput residual;               // f32 [rows, hidden], before the step
  std::vector<CaseInput> partials;  // one per rank, f32 [rows, hidden]
  std::vector<float> weight;        // [hidden]
};

std::vector<JoinCase> join_cases(const JoinProblem& problem, uint64_t seed, int budget);

}  // namespace mettle
