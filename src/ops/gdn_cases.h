// Cases of gdn over ragged batches: decode, chunks around 64, slow and fast decay, tiny keys and outputs, state carried
// across calls, and exact ones that read the whole recurrent state bit for bit.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/attention_cases.h"
#include "ops/case_weights.h"
#include "ops/gdn.h"

namespace mettle {

struct GdnCaseWeights {
  RawGdn raw;
  GdnWeights packed;
  std::vector<CaseWeight> memory;
};

struct GdnCase {
  std::string kind;
  bool exact_state = false, generic = false;
  std::shared_ptr<const GdnCaseWeights> weights;
  CaseBatch batch;
  int slots = 0;
  CaseInput x;
  CaseInput conv_state;  // f32 [slots * channels, 3] before the step; slots that are only written hold NaN
  CaseInput state;       // f32 [slots * value_heads * dk, dv]
};

std::vector<GdnCase> gdn_cases(const GdnProblem& problem, uint64_t seed, int64_t budget, Layout layout);
// What is timed: `rows` rows of so many sequences, each with a state of its own; weights are drawn unless they
// are given.
GdnCase gdn_typical_case(const GdnProblem& problem, int rows, int sequences, uint64_t seed, Layout layout,
                         std::shared_ptr<const GdnCaseWeights> weights = nullptr);

}  // namespace mettle
