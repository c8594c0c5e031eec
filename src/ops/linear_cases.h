// Cases of linear: made from the problem's own shape; used by unit tests, the proof and the benchmark alike.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/case_weights.h"
#include "ops/linear.h"

namespace mettle {

struct LinearCase {
  std::string kind;  // "rows17", "outliers", "exact5", "one_hot"
  int rows = 0;
  bool exact = false;    // every order of summation gives the same bits: tolerance zero
  bool generic = false;  // random data: group statistics apply
  std::shared_ptr<const CaseWeight> weight;
  CaseInput x;
  std::vector<int> reads;  // one_hot: the column of the weight that each row reads out
};

// `budget` bounds the rows of the cases that differ in nothing but their row count.
std::vector<LinearCase> linear_cases(const LinearProblem& problem, uint64_t seed, int budget);
// Random rows on a random weight: what is timed.
LinearCase linear_typical_case(const LinearProblem& problem, int rows, uint64_t seed);

}  // namespace mettle
