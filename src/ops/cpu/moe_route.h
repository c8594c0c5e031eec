// Routing: the best experts of a row with their weights, and the rows of each expert.
#pragma once
#include "ops/moe.h"

namespace mettle::cpu {

// Ids of the top_k best scores in descending order, lowest id on ties, and their weights. A score that is not a number
// is never better than another.
void select_experts(const MoeProblem& p, const float* scores, int32_t* ids, float* weights);

// (row, slot) pairs sorted by expert, rows ascending inside an expert.
struct Grouping {
  int32_t* first = nullptr;  // [experts + 1]
  int32_t* row = nullptr;    // [rows * top_k]
  float* weight = nullptr;   // [rows * top_k]
};
void group_by_expert(const MoeProblem& p, int rows, const int32_t* ids, const float* weights, const Grouping& out);

}  // namespace mettle::cpu
