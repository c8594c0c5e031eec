#include "ops/embed_cases.h"

#include <algorithm>

#include "ops/case_rows.h"

namespace mettle {

void fill_embed_row(uint16_t* row, int hidden, uint64_t seed, int32_t id) {
  CaseRandom random(seed * 1'000'003 + static_cast<uint64_t>(id));
  // Any finite BF16 value but zero, subnormals too: exponent fields 0..254.
  for (int i = 0; i < hidden; ++i) {
    const uint64_t z = random.next(), exponent = (z >> 32) % 255;
    row[i] = static_cast<uint16_t>((z & 0x807F) | exponent << 7 | (exponent == 0 ? 1 : 0));
  }
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
  // As many rows as the case before, other ids.
  EmbedCase again = out.back();
  again.kind += "_again";
  for (int32_t& id : again.ids) id = random.below(p.vocab);
  out.push_back(std::move(again));
  return out;
}

}  // namespace mettle
