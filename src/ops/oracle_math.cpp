#include "ops/oracle_math.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/oracle.h"

namespace mettle::oracle {

double sum_sigma(int64_t k, double magnitude, double peak) {
  const auto n = static_cast<double>(k);
  return kU * (std::sqrt(n) / 2 + n / 128) * std::max(magnitude, peak);
}

double round_to(double value, DType dtype) {
  if (!std::isfinite(value) || value == 0) return value;
  const int bits = dtype == DType::kBF16 ? 8 : 24;
  const int exponent = std::max(std::ilogb(value) + 1, -125);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, bits - exponent)), exponent - bits);
  const double largest = std::ldexp(1 - std::ldexp(1, -bits), 128);
  return std::fabs(rounded) > largest ? std::copysign(INFINITY, value) : rounded;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double silu_slope(double x) {
  const double s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

Tie tie(double value, double sigma, double jump) {
  const double rounded = round_to(value, DType::kBF16), reach = 8 * sigma + jump;
  if (!(reach > 0)) return {rounded, 0};
  return {rounded, std::max(std::fabs(round_to(value + reach, DType::kBF16) - rounded),
                            std::fabs(round_to(value - reach, DType::kBF16) - rounded))};
}

void round_values(Values& v) {
  for (size_t i = 0; i < v.value.data.size(); ++i) {
    if (v.rnd.data[i] > 0) {
      v.rnd.data[i] = std::hypot(v.rnd.data[i], kNu * v.value.data[i]);
      continue;
    }
    const Tie t = tie(v.value.data[i], v.sigma.data[i], v.jump.data[i]);
    v.value.data[i] = t.value;
    v.jump.data[i] = t.jump;
  }
  v.rounded = true;
}

Matrix read_rows(const TensorView& x, std::span<const int> rows) {
  const int64_t cols = x.shape[0] == 0 ? 0 : x.shape.elements() / x.shape[0];
  Matrix m(static_cast<int64_t>(rows.size()), cols);
  for (size_t i = 0; i < rows.size(); ++i)
    for (int64_t k = 0; k < cols; ++k) {
      const int64_t at = rows[i] * cols + k;
      m[static_cast<int64_t>(i)][k] = x.dtype == DType::kF32 ? x.as<float>()[at] : bf16_to_float(x.as<uint16_t>()[at]);
    }
  return m;
}

Matrix read_all(const TensorView& x) { return read_rows(x, all_rows(x.shape[0])); }

Values exact_values(Matrix value) {
  Values v(value.rows, value.cols);
  v.value = std::move(value);
  return v;
}

std::vector<int> all_rows(int64_t count) {
  std::vector<int> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

RawSegments slice_rows(const RawSegments& w, int64_t begin, int64_t end) {
  RawSegments out;
  int64_t at = 0;
  for (const RawMatrix& m : w) {
    const int64_t from = std::max(begin, at), to = std::min(end, at + m.rows);
    if (from < to) out.push_back(m.slice_rows(from - at, to - at));
    at += m.rows;
  }
  return out;
}

namespace {

struct Sum {
  double value = 0, magnitude2 = 0, peak = 0;
};

// sum x w with its second moment and the largest prefix at steps of 256; eight partial sums only for speed.
Sum sum_of(const double* x, const double* w, int64_t count) {
  Sum sum;
  for (int64_t begin = 0; begin < count; begin += 256) {
    const int64_t end = std::min(count, begin + 256);
    Pair s0{}, s1{}, s2{}, s3{}, q0{}, q1{}, q2{}, q3{};
    int64_t k = begin;
    for (; k + 8 <= end; k += 8) {
      const Pair p0 = pair_at(x + k) * pair_at(w + k), p1 = pair_at(x + k + 2) * pair_at(w + k + 2),
                 p2 = pair_at(x + k + 4) * pair_at(w + k + 4), p3 = pair_at(x + k + 6) * pair_at(w + k + 6);
      s0 += p0, s1 += p1, s2 += p2, s3 += p3;
      q0 += p0 * p0, q1 += p1 * p1, q2 += p2 * p2, q3 += p3 * p3;
    }
    double s = 0, q = 0;
    for (; k < end; ++k) {
      s += x[k] * w[k];
      q += square(x[k] * w[k]);
    }
    sum.value += pair_sum(s0, s1) + pair_sum(s2, s3) + s;
    sum.magnitude2 += pair_sum(q0, q1) + pair_sum(q2, q3) + q;
    sum.peak = std::max(sum.peak, std::fabs(sum.value));
  }
  return sum;
}

double sum_of_squares(const double* x, const double* w, int64_t count) {
  Pair q0{}, q1{};
  int64_t k = 0;
  for (; k + 4 <= count; k += 4) {
    const Pair p0 = pair_at(x + k) * pair_at(w + k), p1 = pair_at(x + k + 2) * pair_at(w + k + 2);
    q0 += p0 * p0, q1 += p1 * p1;
  }
  double q = 0;
  for (; k < count; ++k) q += square(x[k] * w[k]);
  return pair_sum(q0, q1) + q;
}

bool any(const double* x, int64_t count) {
  return std::any_of(x, x + count, [](double v) { return v > 0; });
}

double rms(const double* x, int64_t count) {
  double sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += x[k] * x[k];
  return std::sqrt(sum / static_cast<double>(std::max<int64_t>(count, 1)));
}

// What the product knows about an input row before it sees any weight.
struct RowErrors {
  double relative = 0;  // rms(sigma) / rms(value): a shift of the whole row
  bool sigma = false, rnd = false;
  std::vector<int64_t> jumps;
};

}  // namespace

Values product(const RawSegments& w, const Values& x, bool exact) {
  const int64_t rows = x.value.rows, k = x.value.cols;
  Values y(rows, rows_of(w));
  std::vector<RowErrors> errors(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows && !exact; ++r) {
    RowErrors& e = errors[static_cast<size_t>(r)];
    e.relative = rms(x.sigma[r], k) / std::max(rms(x.value[r], k), 1e-300);
    e.sigma = !x.rounded && any(x.sigma[r], k);
    e.rnd = any(x.rnd[r], k);
    for (int64_t i = 0; i < k; ++i)
      if (x.jump[r][i] > 0) e.jumps.push_back(i);
  }
  std::vector<double> weight(static_cast<size_t>(k));
  int64_t out = 0;
  for (const RawMatrix& m : w)
    for (int64_t row = 0; row < m.rows; ++row, ++out) {
      m.read_row(row, weight.data());
      for (int64_t r = 0; r < rows; ++r) {
        const Sum sum = sum_of(x.value[r], weight.data(), k);
        y.value[r][out] = exact ? round_to(sum.value, DType::kF32) : sum.value;
        if (exact) continue;
        const RowErrors& e = errors[static_cast<size_t>(r)];
        // The row scale may itself be a rounded product of two scales: 2 u.
        double variance = square(sum_sigma(k, std::sqrt(sum.magnitude2), sum.peak)) + square(2 * kU * sum.value) +
                          square(e.relative * sum.value);
        if (e.sigma) variance += sum_of_squares(x.sigma[r], weight.data(), k);
        y.sigma[r][out] = std::sqrt(variance);
        if (e.rnd) y.rnd[r][out] = std::sqrt(sum_of_squares(x.rnd[r], weight.data(), k));
        for (const int64_t i : e.jumps) y.jump[r][out] += std::fabs(weight[static_cast<size_t>(i)]) * x.jump[r][i];
      }
    }
  return y;
}

void normalise(double* value, double* sigma, int64_t count, double scale, double eps, const double* weight,
               bool exact) {
  double sum = 0, carried = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += square(value[i]);
    carried += square(value[i] * sigma[i]);
  }
  double root = 1 / std::sqrt(scale * sum + eps);
  if (exact) root = round_to(1 / std::sqrt(round_to(scale * sum + eps, DType::kF32)), DType::kF32);
  // d(x_i root) = root (dx_i - x_i root^2 scale sum_j x_j dx_j)
  const double shared = square(root * root * scale) * carried;
  for (int64_t i = 0; i < count; ++i) {
    const double factor = root * (weight == nullptr ? 1 : weight[i]);
    if (!exact) sigma[i] = std::fabs(factor) * std::sqrt(square(sigma[i]) + square(value[i]) * shared);
    value[i] *= factor;
    if (exact) value[i] = round_to(value[i], DType::kF32);
  }
}

void fill(Expected& expected, const Values& v) {
  expected.value = v.value.data;
  expected.sys = v.sigma.data;
  expected.rnd = v.rnd.data;
  expected.jump = v.jump.data;
}

}  // namespace mettle::oracle
