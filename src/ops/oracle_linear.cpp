// The oracles of linear and join.
#include <cmath>

#include "ops/oracle.h"
#include "ops/oracle_math.h"

namespace mettle::oracle {

Expected linear(const LinearProblem& problem, const RawSegments& weight, const TensorView& x, std::span<const int> rows,
                const Options& options) {
  Expected expected(static_cast<int64_t>(rows.size()), problem.out, DType::kF32);
  fill(expected, product(weight, exact_values(read_rows(x, rows)), options.exact));
  return expected;
}

Expected join_residual(const JoinProblem& problem, const TensorView& residual_before,
                       std::span<const float* const> partials, const Options& options) {
  const Matrix before = read_all(residual_before);
  Expected expected(before.rows, before.cols, DType::kF32);
  const double unit = options.exact ? 0 : 0.6 * kU * std::sqrt(static_cast<double>(problem.ranks));
  for (size_t i = 0; i < expected.value.size(); ++i) {
    double sum = before.data[i], magnitude = std::fabs(before.data[i]);
    for (const float* partial : partials) {
      sum += static_cast<double>(partial[i]);
      magnitude += std::fabs(static_cast<double>(partial[i]));
    }
    expected.value[i] = sum;
    expected.sys[i] = unit * magnitude;
  }
  return expected;
}

Expected join_x(const JoinProblem& problem, const TensorView& residual_after, const float* weight,
                const Options& options) {
  Matrix x = read_all(residual_after);
  Matrix none(x.rows, x.cols);
  std::vector<double> factor(static_cast<size_t>(x.cols));
  for (size_t i = 0; i < factor.size(); ++i) {
    factor[i] = problem.plus_one ? 1 + static_cast<double>(weight[i]) : static_cast<double>(weight[i]);
    if (options.exact) factor[i] = round_to(factor[i], DType::kF32);
  }
  Expected expected(x.rows, x.cols, dtype_of(problem.activation));
  const auto width = static_cast<double>(x.cols);
  const double unit = options.exact ? 0 : kU * (6 + std::sqrt(width) / 4 + width / 256);
  for (int64_t r = 0; r < x.rows; ++r)
    normalise(x[r], none[r], x.cols, 1 / width, static_cast<double>(problem.eps), factor.data(), options.exact);
  for (size_t i = 0; i < expected.value.size(); ++i) {
    expected.value[i] = x.data[i];
    expected.sys[i] = unit * std::fabs(x.data[i]);
  }
  return expected;
}

}  // namespace mettle::oracle
