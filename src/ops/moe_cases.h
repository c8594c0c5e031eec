// Cases of moe, made from the problem's own shape: routing uniform, skewed, with empty experts, with ties; typical,
// large and flushed magnitudes; exact ones in which every weight of every expert shows bit for bit.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/case_weights.h"
#include "ops/moe.h"

namespace mettle {

// All experts from few matrices when there are many: each expert has its own pair of them and its own global scales, so
// 512 experts of the real geometry fit in memory and no two are alike.
struct MoeCaseWeights {
  Layout layout = Layout::kTile16;
  RawMoe raw;
  MoeWeights packed;
  size_t distinct = 0;                         // the first so many experts hold every matrix once
  std::vector<CaseWeight> memory;              // of raw
  std::vector<Buffer> row_scales;              // of packed experts that share a matrix
  std::shared_ptr<const MoeCaseWeights> base;  // owns what is shared with another set
};

struct MoeCase {
  std::string kind;
  int rows = 0;
  bool exact = false;
  bool generic = false;
  bool exact_scores = false;   // router scores are exact in float32: ties go to the lowest id
  std::vector<int32_t> given;  // not empty: the selection is given, [rows, top_k]; -1: padding
  std::shared_ptr<const MoeCaseWeights> weights;
  CaseInput x;
};

std::vector<MoeCase> moe_cases(const MoeProblem& problem, uint64_t seed, int budget, Layout layout);
MoeCase moe_typical_case(const MoeProblem& problem, int rows, uint64_t seed, Layout layout);

}  // namespace mettle
