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

struct Token {
  double value;  // adjusted logit
  int32_t id;
};

// Place in the order that the formulas draw; `weight` of the leading tokens, exp of their distance from the best.
size_t draw(const std::vector<double>& weight, double random, double top_p, double min_p, bool cut) {
  size_t count = weight.size();
  if (cut) {
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

// In the order of the formulas as far as `count`; behind them the rest in any.
std::vector<Token> ordered(const Adjusted& a, size_t count) {
  std::vector<Token> order(a.value.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = {a.value[i], static_cast<int32_t>(i)};
  const auto before = [](const Token& x, const Token& y) {
    return x.value != y.value ? x.value > y.value : x.id < y.id;
  };
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(count);
  if (count < order.size()) std::nth_element(order.begin(), end - 1, order.end(), before);
  std::sort(order.begin(), end, before);
  return order;
}

}  // namespace

SampleExpected sample(const SampleProblem& problem, const float* logits, const SampleRow& row) {
  SampleExpected expected;
  expected.finite = std::all_of(logits, logits + problem.usable, [](float l) { return std::isfinite(l); });
  if (!expected.finite) return expected;
  const Adjusted a = adjust(problem, logits, row);
  size_t count = 1;
  if (row.temperature > 0) {
    count = a.value.size();
    if (row.top_k > 0) count = std::min(static_cast<size_t>(row.top_k), count);
  }
  const std::vector<Token> order = ordered(a, count);
  if (order[0].value == -INFINITY) {
    expected.finite = false;  // every token is forbidden
    return expected;
  }
  size_t first = 0, last = 0;
  if (row.temperature > 0) {
    std::vector<double> weight(count);
    for (size_t i = 0; i < count; ++i)
      weight[i] = std::exp((order[i].value - order[0].value) / static_cast<double>(row.temperature));
    const double eps = 10 * (34 * kU + running_sum(problem.usable));
    const auto top_p = static_cast<double>(row.top_p), min_p = static_cast<double>(row.min_p);
    const bool cut = row.top_p < 1;
    first = draw(weight, std::max(row.random - eps, 0.0), top_p - eps, min_p * (1 + eps), cut);
    last = draw(weight, std::min(row.random + eps, 1 - 1e-12), top_p + eps, min_p * (1 - eps), cut);
  }
  // A token that bias or penalties move may change places with any whose logit lies within the error.
  const auto error = [&](size_t place) { return a.error[static_cast<size_t>(order[place].id)]; };
  for (size_t i = 0; i < order.size(); ++i) {
    bool right = i >= first && i <= last;
    for (size_t end = 0; end < 2 && !right; ++end) {
      const size_t other = end == 0 ? first : last;
      const double reach = error(i) + error(other);
      right = reach > 0 && std::fabs(order[i].value - order[other].value) <= reach;
    }
    if (right) expected.right.push_back(order[i].id);
  }
  return expected;
}

LogitSum logit_sum(const SampleProblem& problem, const float* logits) {
  LogitSum s{-INFINITY, 0};
  for (int i = 0; i < problem.usable; ++i) s.top = std::max(s.top, static_cast<double>(logits[i]));
  double sum = 0;
  for (int i = 0; i < problem.usable; ++i) sum += std::exp(static_cast<double>(logits[i]) - s.top);
  s.log_sum = std::log(sum);
  return s;
}

double logprob(const SampleProblem& problem, const LogitSum& sum, float logit, double* sigma) {
  const double distance = static_cast<double>(logit) - sum.top, value = distance - sum.log_sum;
  if (sigma != nullptr) *sigma = running_sum(problem.usable) + kU * (4 + std::fabs(distance) + std::fabs(value));
  return value;
}

double logprob(const SampleProblem& problem, const float* logits, int32_t token, double* sigma) {
  return logprob(problem, logit_sum(problem, logits), logits[token], sigma);
}

}  // namespace mettle::oracle
