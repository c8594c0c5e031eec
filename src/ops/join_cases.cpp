#include "ops/join_cases.h"

#include <algorithm>
#include <cmath>

#include "ops/case_rows.h"

namespace mettle {
namespace {

JoinCase typical(const JoinProblem& p, int rows, double scale, const std::string& kind, CaseRandom& random) {
  JoinCase c;
  c.kind = kind;
  c.rows = rows;
  c.generic = true;
  c.residual = CaseInput(rows, p.hidden, DType::kF32);
  c.residual.fill_normal(random, scale);
  for (int rank = 0; rank < p.ranks; ++rank) {
    c.partials.emplace_back(rows, p.hidden, DType::kF32);
    c.partials.back().fill_normal(random, scale);
  }
  for (int i = 0; i < p.hidden; ++i)
    c.weight.push_back(static_cast<float>(random.normal() * (p.plus_one ? 0.1 : 0.3) + (p.plus_one ? 0 : 1)));
  return c;
}

// Every |residual| of a row becomes the same power of two, so the root is one and x = +-w bit for bit (epsilon is below
// half a step of the square).
JoinCase exact(const JoinProblem& p, int rows, CaseRandom& random) {
  JoinCase c = typical(p, rows, 1, "exact" + std::to_string(rows), random);
  c.exact = true;
  c.generic = false;
  for (int r = 0; r < rows; ++r) {
    const double a = std::ldexp(1.0, 8 + random.below(5));
    for (int i = 0; i < p.hidden; ++i) {
      double want = random.chance(0.5) ? a : -a;
      for (CaseInput& partial : c.partials) {
        const double v = a * (random.below(7) - 3);
        partial.set(r, i, v);
        want -= v;
      }
      c.residual.set(r, i, want);
    }
  }
  for (int i = 0; i < p.hidden; ++i)
    c.weight[static_cast<size_t>(i)] = static_cast<float>((random.below(129) - 64) / 128.0 + (p.plus_one ? 0 : 1));
  return c;
}

}  // namespace

std::vector<JoinCase> join_cases(const JoinProblem& p, uint64_t seed, int budget) {
  CaseRandom random(seed);
  std::vector<JoinCase> out;
  for (const int rows : case_row_counts(budget))
    out.push_back(typical(p, rows, 1, "rows" + std::to_string(rows), random));
  out.push_back(typical(p, 33, 3e-3, "tiny", random));
  out.push_back(typical(p, 9, 2e-4, "tinier", random));
  out.push_back(typical(p, 9, 300, "large", random));
  out.push_back(exact(p, 33, random));
  out.push_back(exact(p, 3, random));
  JoinCase spiky = typical(p, 17, 1, "outliers", random);
  for (int r = 0; r < spiky.rows; ++r) spiky.residual.set(r, p.hidden / 3, spiky.residual.get(r, p.hidden / 3) * 500);
  spiky.generic = false;
  out.push_back(std::move(spiky));
  JoinCase zero = typical(p, 3, 0, "zeros", random);
  zero.generic = false;
  zero.zero = true;
  out.push_back(std::move(zero));
  return out;
}

}  // namespace mettle
