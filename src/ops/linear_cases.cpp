#include "ops/linear_cases.h"

#include <algorithm>

#include "ops/case_rows.h"

namespace mettle {
namespace {

// Two segments with different global scales and a border off the tiles where the height allows it.
std::shared_ptr<const CaseWeight> weight_of(const LinearProblem& p, CaseFill fill, CaseRandom& random) {
  const int64_t first = p.format == WeightFormat::kFp8Block || p.out < 40 ? 0 : p.out / 2 + 3;
  return std::make_shared<const CaseWeight>(case_weight(p.format, {first, p.out - first}, p.in, fill, random));
}

LinearCase typical(const LinearProblem& p, int rows, std::shared_ptr<const CaseWeight> weight, CaseRandom& random) {
  LinearCase c{"rows" + std::to_string(rows),
               rows,
               false,
               true,
               std::move(weight),
               CaseInput(rows, p.in, dtype_of(p.activation))};
  c.x.fill_normal(random);
  return c;
}

}  // namespace

std::vector<LinearCase> linear_cases(const LinearProblem& p, uint64_t seed, int budget) {
  CaseRandom random(seed);
  const auto weight = weight_of(p, CaseFill::kTypical, random);
  std::vector<LinearCase> out;
  for (const int rows : case_row_counts(budget)) out.push_back(typical(p, rows, weight, random));
  const int few = std::clamp(budget / 8, 3, 48);

  LinearCase outliers = typical(p, few, weight, random);
  outliers.kind = "outliers";
  outliers.generic = false;
  for (int i = 0; i < 4; ++i) {
    const int64_t k = random.below(p.in);
    for (int64_t r = 0; r < outliers.rows; ++r) outliers.x.set(r, k, outliers.x.get(r, k) * 60);
  }
  out.push_back(std::move(outliers));

  LinearCase wide = typical(p, few, weight_of(p, CaseFill::kWideScales, random), random);
  wide.kind = "wide_scales";
  out.push_back(std::move(wide));

  LinearCase tiny = typical(p, few, weight, random);
  tiny.kind = "tiny";
  tiny.generic = false;
  tiny.x.fill_normal(random, 0x1p-98);
  out.push_back(std::move(tiny));

  const auto exact = weight_of(p, CaseFill::kExact, random);
  for (const int rows : {std::clamp(budget / 2, 4, 128), 5}) {
    LinearCase c{
        "exact" + std::to_string(rows), rows, true, false, exact, CaseInput(rows, p.in, dtype_of(p.activation))};
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < p.in; ++k) c.x.set(r, k, random.below(3) - 1);
    out.push_back(std::move(c));
  }

  // Each row reads out one column of the weight, so that a failure names the wrong weight.
  LinearCase one_hot{"one_hot", std::min(std::clamp(budget / 4, 8, 64), p.in), true, false, exact};
  one_hot.x = CaseInput(one_hot.rows, p.in, dtype_of(p.activation));
  for (int r = 0; r < one_hot.rows; ++r) {
    const int64_t near = int64_t{r} * p.in / one_hot.rows + r % 13;
    one_hot.reads.push_back(r + 1 == one_hot.rows ? p.in - 1 : static_cast<int>(near % p.in));
    for (int k = 0; k < p.in; ++k) one_hot.x.set(r, k, k == one_hot.reads.back() ? 1 : 0);
  }
  out.push_back(std::move(one_hot));
  return out;
}

LinearCase linear_typical_case(const LinearProblem& p, int rows, uint64_t seed) {
  CaseRandom random(seed);
  return typical(p, rows, weight_of(p, CaseFill::kTypical, random), random);
}

}  // namespace mettle
