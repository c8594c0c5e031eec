// Cases of embed: a table whose rows all differ, ids in and out of order, first and last, repeated.
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

// One row of a table of bf16; rows differ in every column, none holds a zero.
void fill_embed_row(uint16_t* row, int hidden, uint64_t seed, int32_t id);
std::vector<EmbedCase> embed_cases(const EmbedProblem& problem, uint64_t seed, int budget);

}  // namespace mettle
