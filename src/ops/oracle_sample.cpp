// The oracle of sample: which tokens a row may draw, and log-probabilities.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/oracle.h"
#include "ops/oracle_math.h"

namespace mettle::oracle {
namespace {

double running_sum(int64_t count) {
  const auto n = static_cast<double>(count);
  return kU * (std::sqrt(n) / 2 + n / 128);
}

// Adjusted logits and a bound of the float32 error of their bias and penalties (0 where there are none).
struct Adjusted {
  std::vector<double> value, error;
};

Adjusted adjust(const SampleProblem& p, const float* logits, const SampleRow& row) {
  const auto usable = static_cast<size_t>(p.usable);
  Adjusted a{std::vector<double>(logits, logits + usable), std::vector<double>(usable)};
  for (const TokenBias& b : row.biases) {
    if (b.id < 0 || b.id >= p.usable || b.bias == 0) continue;
    const auto i = static_cast<size_t>(b.id);
    if (std::isfinite(b.bias)) a.error[i] += kU * (std::fabs(a.value[i]) + std::fabs(static_cast<double>(b.bias)));
    a.value[i] += static_cast<double>(b.bias);
  }
  for (const TokenCount& c : row.counts) {
    if (c.id < 0 || c.id >= p.usable || (!c.in_prompt && c.in_output <= 0)) continue;
    const auto i = static_cast<size_t>(c.id);
    double& l = a.value[i];
    const double repetition = static_cast<double>(row.repetition), before = std::fabs(l);
    l = l > 0 ? l / repetition : l * repetition;
    double minus = 0;
    if (c.in_output > 0) minus = static_cast<double>(row.presence) + static_cast<double>(row.frequency) * c.in_output;
    if (repetition != 1) a.error[i] += a.error[i] * (repetition + 1 / repetition) + kU * (before + std::fabs(l));
    if (minus != 0) a.error[i] += 3 * kU * (std::fabs(l) + std::fabs(minus));
    l -= minus;
  }
  return a;
}

// Place in `order` that the formulas draw.
size_t draw(const std::vector<int32_t>& order, const Adjusted& a, const SampleRow& row, double random, double top_p,
            double min_p) {
  const double top = a.value[static_cast<size_t>(order[0])];
  size_t count = row.top_k > 0 ? std::min<size_t>(static_cast<size_t>(row.top_k), order.size()) : order.size();
  std::vector<double> weight(count);
  for (size_t i = 0; i < count; ++i)
    weight[i] = std::exp((a.value[static_cast<size_t>(order[i])] - top) / static_cast<double>(row.temperature));
  if (row.top_p < 1) {
    const double limit = top_p * std::accumulate(weight.begin(), weight.end(), 0.0);
    size_t keep = 0;
    for (double before = 0; keep < count && (keep == 0 || before < limit); ++keep) before += weight[keep];
    count = keep;
  }
  while (count > 1 && weight[count - 1] < min_p) --count;
  const double target =
      random * std::accumulate(weight.begin(), weight.begin() + static_cast<std::ptrdiff_t>(count), 0.0);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += weight[i];
    if (sum > target) return i;
  }
  return count - 1;
}

}  // namespace

SampleExpected sample(const SampleProblem& problem, const float* logits, const SampleRow& row) {
  SampleExpected expected;
  expected.finite = std::all_of(logits, logits + problem.usable, [](float l) { return std::isfinite(l); });
  if (!expected.finite) return expected;
  const Adjusted a = adjust(problem, logits, row);
  std::vector<int32_t> order(static_cast<size_t>(problem.usable));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t i, int32_t j) {
    return a.value[static_cast<size_t>(i)] > a.value[static_cast<size_t>(j)];
  });
  if (a.value[static_cast<size_t>(order[0])] == -INFINITY) {
    expected.finite = false;  // every token is forbidden
    return expected;
  }
  size_t first = 0, last = 0;
  if (row.temperature > 0) {
    const double eps = 10 * (34 * kU + running_sum(problem.usable));
    const auto top_p = static_cast<double>(row.top_p), min_p = static_cast<double>(row.min_p);
    first = draw(order, a, row, std::max(row.random - eps, 0.0), top_p - eps, min_p * (1 + eps));
    last = draw(order, a, row, std::min(row.random + eps, 1 - 1e-12), top_p + eps, min_p * (1 - eps));
  }
  // A token that bias or penalties move may change places with any whose logit lies within the error.
  const auto value = [&](size_t place) { return a.value[static_cast<size_t>(order[place])]; };
  const auto error = [&](size_t place) { return a.error[static_cast<size_t>(order[place])]; };
  for (size_t i = 0; i < order.size(); ++i) {
    bool right = i >= first && i <= last;
    for (size_t end = 0; end < 2 && !right; ++end) {
      const size_t other = end == 0 ? first : last;
      const double reach = error(i) + error(other);
      right = reach > 0 && std::fabs(value(i) - value(other)) <= reach;
    }
    if (right) expected.right.push_back(order[i]);
  }
  return expected;
}

double logprob(const SampleProblem& problem, const float* logits, int32_t token, double* sigma) {
  double top = -INFINITY, sum = 0;
  for (int i = 0; i < problem.usable; ++i) top = std::max(top, static_cast<double>(logits[i]));
  for (int i = 0; i < problem.usable; ++i) sum += std::exp(static_cast<double>(logits[i]) - top);
  const double distance = static_cast<double>(logits[token]) - top, value = distance - std::log(sum);
  if (sigma != nullptr) *sigma = running_sum(problem.usable) + kU * (4 + std::fabs(distance) + std::fabs(value));
  return value;
}

}  // namespace mettle::oracle
