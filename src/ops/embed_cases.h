// Cases of embed: a table whose every element tells its place, ids in and out of order, first and last, repeated.
#pragma once
#include <string>
#include <vector>

#include "ops/case_weights.h"
#include "ops/embed.h"

namespace mettle {

struct EmbedCase {
  std::string kind;
  int rows = 0;
  std::vector<int32_t> ids;
};

// bf16 [vocab, hidden]; neighbours differ in every row and column.
CaseInput embed_table(const EmbedProblem& problem, uint64_t seed);
std::vector<EmbedCase> embed_cases(const EmbedProblem& problem, uint64_t seed, int budget);

}  // namespace mettle
