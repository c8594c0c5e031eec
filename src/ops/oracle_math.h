// What the oracles share: float64 matrices with error terms, products with raw weights, replayed roundings.
#pragma once
#include <cstring>
#include <span>
#include <vector>

#include "ops/expected.h"
#include "tensor/tensor_view.h"
#include "tensor/weight.h"

namespace mettle::oracle {

inline constexpr double kU = 0x1p-24;  // unit roundoff of float32
inline constexpr double kNu =
    0x1p-8 / 1.7320508075688772;  // one sigma of a bf16 rounding that cannot be replayed, relative

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> data;

  Matrix() = default;
  Matrix(int64_t rows, int64_t cols) : rows(rows), cols(cols), data(static_cast<size_t>(rows * cols)) {}
  double* operator[](int64_t row) { return data.data() + row * cols; }
  const double* operator[](int64_t row) const { return data.data() + row * cols; }
};

// Two float64 numbers that are worked on together, each rounded as alone. Compilers turn loops over partial sums into
// shuffles; this says what is meant.
using Pair = double __attribute__((vector_size(16)));
inline Pair pair_at(const double* x) {
  Pair pair;
  std::memcpy(&pair, x, sizeof pair);
  return pair;
}
inline double pair_sum(Pair a, Pair b) { return (a[0] + a[1]) + (b[0] + b[1]); }

// Values with their errors: sigma (may share a sign), rnd (roundings that cannot be replayed), jump (replayed ones that
// may fall the other way). `rounded`: a replayed rounding stands behind sigma, of which only a shift of the average
// survives.
struct Values {
  Matrix value, sigma, rnd, jump;
  bool rounded = false;

  Values() = default;
  Values(int64_t rows, int64_t cols) : value(rows, cols), sigma(rows, cols), rnd(rows, cols), jump(rows, cols) {}
};

// Once, from float64, to nearest even; kF32 and kBF16. Beyond the largest value: infinity.
double round_to(double value, DType dtype);
inline double square(double x) { return x * x; }
double sigmoid(double x);
double silu(double x);
double silu_slope(double x);

// A replayed rounding to bf16: the rounded value, and how far it may jump when the true value lies within 8 sigma +
// jump.
struct Tie {
  double value, jump;
};
Tie tie(double value, double sigma, double jump = 0);

// Rounds every value to bf16 as declared: replayed where there is no rnd, else as one more rounding that cannot be.
void round_values(Values& v);

Matrix read_rows(const TensorView& x, std::span<const int> rows);
Matrix read_all(const TensorView& x);  // [first size, product of the others]
Values exact_values(Matrix value);     // no errors
std::vector<int> all_rows(int64_t count);
RawSegments slice_rows(const RawSegments& w, int64_t begin, int64_t end);

// y = x W^T with the errors of a float32 sum in any order and those that x carries. `exact`: only y.
Values product(const RawSegments& w, const Values& x, bool exact);

// x -> x * rsqrt(scale * sum x^2 + eps) * weight on `count` values in place, sigma through the same; weight may be
// null.
void normalise(double* value, double* sigma, int64_t count, double scale, double eps, const double* weight, bool exact);

// Copies into an Expected; with `exact` the error terms stay zero.
void fill(Expected& expected, const Values& v);

}  // namespace mettle::oracle
