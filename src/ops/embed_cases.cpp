#include "ops/embed_cases.h"

#include <algorithm>

#include "ops/case_rows.h"

namespace mettle {

CaseInput embed_table(const EmbedProblem& p, uint64_t seed) {
  CaseInput table(p.vocab, p.hidden, DType::kBF16);
  CaseRandom random(seed);
  auto* at = table.view().as<uint16_t>();
  // Any finite BF16 value but zero: exponent fields 1..254.
  for (int64_t i = 0, n = int64_t{p.vocab} * p.hidden; i < n; ++i) {
    const uint64_t z = random.next();
    at[i] = static_cast<uint16_t>((z & 0x807F) | (1 + (z >> 32) % 254) << 7);
  }
  return table;
}

std::vector<EmbedCase> embed_cases(const EmbedProblem& p, uint64_t seed, int budget) {
  CaseRandom random(seed);
  std::vector<EmbedCase> out;
  for (const int rows : case_row_counts(std::min(budget, 1024))) {
    EmbedCase c{"rows" + std::to_string(rows), rows, {}};
    for (int r = 0; r < rows; ++r) c.ids.push_back(random.below(p.vocab));
    c.ids.front() = p.vocab - 1;
    if (rows > 2) c.ids[1] = 0, c.ids[2] = c.ids.front();
    out.push_back(std::move(c));
  }
  return out;
}

}  // namespace mettle
