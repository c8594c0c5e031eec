// Cases of sample: the random number is an input, so a sweep over it reads out the whole distribution; ties, cuts,
// penalties, padding above the maximum, non-finite rows; borders of the slices that threads or blocks may take.
#pragma once
#include <string>
#include <vector>

#include "ops/case_weights.h"
#include "ops/sample.h"

namespace mettle {

struct SampleCase {
  std::string kind;
  int rows = 0;
  CaseInput logits;  // f32 [rows, vocab]
  std::vector<std::vector<TokenCount>> counts;
  std::vector<std::vector<TokenBias>> biases;
  // Row r with its spans; valid while the case stays where it is.
  std::vector<SampleRow> params() const;
  std::vector<SampleRow> bare;  // without spans
};

// `rows` bounds the rows of the larger cases.
std::vector<SampleCase> sample_cases(const SampleProblem& problem, uint64_t seed, int rows);

}  // namespace mettle
