// The oracle of moe: router scores, weights of given ids, experts under given ids.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/oracle.h"
#include "ops/oracle_math.h"

namespace mettle::oracle {
namespace {

// Softmax of one row of scores over the selected ids without padding, or over all.
struct Softmax {
  double top = -INFINITY, sum = 0;
  double variance = 0;  // sum over its terms of (p sigma)^2
};

Softmax softmax_of(const MoeProblem& p, const double* score, const double* sigma, const int32_t* ids) {
  const int count = p.renormalise ? p.top_k : p.experts;
  const auto at = [&](int i) { return p.renormalise ? ids[i] : i; };
  Softmax s;
  for (int i = 0; i < count; ++i)
    if (at(i) >= 0) s.top = std::max(s.top, score[at(i)]);
  for (int i = 0; i < count; ++i)
    if (at(i) >= 0) s.sum += std::exp(score[at(i)] - s.top);
  for (int i = 0; i < count; ++i)
    if (at(i) >= 0) s.variance += square(std::exp(score[at(i)] - s.top) / s.sum * sigma[at(i)]);
  return s;
}

struct Weights {
  Matrix value, sigma;  // [rows, top_k]
};

Weights weights_of(const MoeProblem& p, const Values& score, std::span<const int> rows, const int32_t* ids,
                   bool exact) {
  Weights w{Matrix(score.value.rows, p.top_k), Matrix(score.value.rows, p.top_k)};
  for (int64_t r = 0; r < score.value.rows; ++r) {
    const int32_t* own = ids + static_cast<int64_t>(rows[static_cast<size_t>(r)]) * p.top_k;
    const Softmax s = softmax_of(p, score.value[r], score.sigma[r], own);
    for (int k = 0; k < p.top_k; ++k) {
      if (own[k] < 0) continue;  // padding weighs nothing
      const double value = std::exp(score.value[r][own[k]] - s.top) / s.sum;
      w.value[r][k] = exact ? round_to(value, DType::kF32) : value;
      if (!exact) w.sigma[r][k] = value * std::sqrt(square(score.sigma[r][own[k]]) + s.variance + square(12 * kU));
    }
  }
  return w;
}

Values scores_of(const RawMoe& weights, const TensorView& x, std::span<const int> rows, bool exact) {
  return product(weights.router, exact_values(read_rows(x, rows)), exact);
}

// silu(gate) * up of gate_up [rows, 2 width], rounded as declared.
Values swiglu(const Values& gate_up, Activation activation, const Options& options) {
  const int64_t width = gate_up.value.cols / 2;
  const bool bf16 = activation == Activation::kBf16, exact = options.exact;
  Values h(gate_up.value.rows, width);
  for (int64_t r = 0; r < gate_up.value.rows; ++r)
    for (int64_t i = 0; i < width; ++i) {
      double g = gate_up.value[r][i], u = gate_up.value[r][width + i];
      double sg = gate_up.sigma[r][i], su = gate_up.sigma[r][width + i], jump = 0;
      if (bf16 && options.numerics.gate_up == Rounds::kBf16) {
        const Tie tg = tie(g, sg), tu = tie(u, su);
        g = tg.value;
        u = tu.value;
        sg = su = 0;
        // Followed exactly: one bf16 step at gate = -30 changes silu by 13 percent.
        if (tg.jump > 0 || tu.jump > 0)
          for (const double dg : {-tg.jump, tg.jump})
            for (const double du : {-tu.jump, tu.jump})
              jump = std::max(jump, std::fabs(silu(g + dg) * (u + du) - silu(g) * u));
      }
      const double t = exact ? round_to(round_to(silu(g), DType::kF32) * u, DType::kF32) : silu(g) * u;
      h.value[r][i] = t;
      h.jump[r][i] = jump;
      if (!exact) h.sigma[r][i] = std::sqrt(square(silu_slope(g) * u * sg) + square(silu(g) * su) + square(8 * kU * t));
    }
  if (bf16 && options.numerics.h == Rounds::kBf16) round_values(h);
  return h;
}

Values expert(const RawExpert& weights, const Values& x, Activation activation, const Options& options) {
  return product(weights.down, swiglu(product(weights.gate_up, x, options.exact), activation, options), options.exact);
}

Matrix gather(const Matrix& from, const std::vector<int64_t>& rows) {
  Matrix m(static_cast<int64_t>(rows.size()), from.cols);
  for (size_t i = 0; i < rows.size(); ++i) std::copy_n(from[rows[i]], from.cols, m[static_cast<int64_t>(i)]);
  return m;
}

// Adds weight * y to a row of the result; sigma holds squares until the end.
void add(Values& sum, int64_t row, double weight, double weight_sigma, double unit, const Values& y, int64_t from) {
  for (int64_t c = 0; c < sum.value.cols; ++c) {
    const double value = y.value[from][c];
    sum.value[row][c] += weight * value;
    sum.sigma[row][c] +=
        square(weight * y.sigma[from][c]) + square(weight_sigma * value) + square(unit * weight * value);
    sum.rnd[row][c] += square(weight * y.rnd[from][c]);
    sum.jump[row][c] += weight * y.jump[from][c];
  }
}

}  // namespace

RouteExpected route(const MoeProblem& problem, const RawMoe& weights, const TensorView& x, std::span<const int> rows,
                    const int32_t* ids, const Options& options) {
  const Values score = scores_of(weights, x, rows, options.exact);
  RouteExpected expected{score.value.data, score.sigma.data, Expected(score.value.rows, problem.top_k, DType::kF32)};
  const Weights w = weights_of(problem, score, rows, ids, options.exact);
  expected.weights.value = w.value.data;
  expected.weights.sys = w.sigma.data;
  return expected;
}

void select(const MoeProblem& problem, const RawMoe& weights, const TensorView& x, int32_t* ids, float* weights_out) {
  const std::vector<int> rows = all_rows(x.shape[0]);
  const Values score = scores_of(weights, x, rows, false);
  std::vector<int32_t> order(static_cast<size_t>(problem.experts));
  for (int64_t r = 0; r < score.value.rows; ++r) {
    std::iota(order.begin(), order.end(), 0);
    const double* s = score.value[r];
    std::stable_sort(order.begin(), order.end(), [s](int32_t a, int32_t b) { return s[a] > s[b]; });
    std::copy_n(order.begin(), problem.top_k, ids + r * problem.top_k);
  }
  const Weights w = weights_of(problem, score, rows, ids, false);
  for (size_t i = 0; i < w.value.data.size(); ++i) weights_out[i] = static_cast<float>(w.value.data[i]);
}

Expected moe(const MoeProblem& problem, const RawMoe& weights, const TensorView& x, std::span<const int> rows,
             const int32_t* ids, const Options& options) {
  const Values input = exact_values(read_rows(x, rows));
  const int64_t count = input.value.rows;
  const Weights w = weights_of(problem, product(weights.router, input, options.exact), rows, ids, options.exact);
  Values sum(count, problem.hidden);
  for (int e = 0; e < problem.experts; ++e) {
    std::vector<int64_t> own, slots;
    for (int64_t r = 0; r < count; ++r)
      for (int k = 0; k < problem.top_k; ++k)
        if (ids[static_cast<int64_t>(rows[static_cast<size_t>(r)]) * problem.top_k + k] == e) {
          own.push_back(r);
          slots.push_back(k);
        }
    if (own.empty()) continue;
    const Values y = expert(weights.experts[static_cast<size_t>(e)], exact_values(gather(input.value, own)),
                            problem.activation, options);
    for (size_t i = 0; i < own.size(); ++i)
      add(sum, own[i], w.value[own[i]][slots[i]], w.sigma[own[i]][slots[i]], 2 * kU, y, static_cast<int64_t>(i));
  }
  if (problem.shared_width > 0) {
    const Values y = expert(weights.shared, input, problem.activation, options);
    Values gate;
    if (problem.shared_gate) gate = product(weights.shared_gate, input, options.exact);
    for (int64_t r = 0; r < count; ++r) {
      double a = problem.shared_gate ? sigmoid(gate.value[r][0]) : 1;
      const double sigma = problem.shared_gate ? a * (1 - a) * gate.sigma[r][0] : 0;
      if (options.exact) a = round_to(a, DType::kF32);
      add(sum, r, a, sigma, 6 * kU, y, r);
    }
  }
  for (double& v : sum.sigma.data) v = options.exact ? 0 : std::sqrt(v);
  for (double& v : sum.rnd.data) v = std::sqrt(v);
  Expected expected(count, problem.hidden, DType::kF32);
  fill(expected, sum);
  return expected;
}

}  // namespace mettle::oracle
