// The judge: decides whether an output is right. Pure functions of what was expected and what came; rules and constants
// are derived in docs/proofs.md. Every comparison is written !(x <= limit), so NaN is wrong, and this file may never be
// built with -ffast-math (judge.cpp refuses to compile).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/expected.h"

namespace mettle::judge {

inline constexpr double kElement = 10;  // sigmas allowed to one element beyond the output rounding
inline constexpr double kGroup = 8;     // sigmas allowed to a group's gain, bias or shrink, random part
inline constexpr double kFlips = 10;    // single largest contributions allowed on top: few, rare flips of the rounding
inline constexpr double kShared = 4;    // sigmas of the systematic part that a whole group may share
inline constexpr double kNoiseSteps = 4;  // steps of the format that are taken off first
inline constexpr double kNoise = 4;       // allowed ratio of squared residuals to their prediction

// Distance of neighbouring values of the format at x (subnormals included; at zero the smallest subnormal).
double quantum(double x, DType dtype);
// x rounded once, to nearest even; beyond the largest finite value: infinity, of e4m3 the largest.
double rounded(double x, DType dtype);
// How far `expected` lies outside the interval of reals that round to `got`; NaN when either is NaN.
double excess(double expected, double got, DType dtype);

// Where an element rule was broken, or came closest.
struct Element {
  int64_t row = 0, col = 0;
  double got = 0, low = 0, high = 0;  // the interval of accepted values
};

// Rule 1. Sigmas needed to accept the worst element (pass: <= kElement); NaN or infinity when nothing accepts it.
struct ElementResult {
  double worst = 0;
  Element at;
  int64_t failures = 0;
  // Smallest box that holds all failures.
  int64_t row_first = 0, row_last = 0, col_first = 0, col_last = 0;
};
ElementResult element(const Expected& expected, std::span<const float> got);

// Rule 4, tolerance zero: got == round(expected); -0 equals 0. worst is 0 or infinity.
ElementResult exact(const Expected& expected, std::span<const float> got);

// Rules 2 and 3: gain, bias and shrink of groups of elements, and the noise of all. Sums add up over launches with
// fresh inputs, so that tactics of few rows are judged as sharply as others. For generic random data only.
class Groups {
 public:
  // Adds a launch; all launches must have the same number of columns.
  void add(const Expected& expected, std::span<const float> got);

  struct Worst {
    double ratio = 0;   // to the limit; pass: <= 1
    std::string group;  // "gain of column 17", "noise"
  };
  Worst worst() const;
  int64_t elements() const { return elements_; }

  struct Sums {  // of one group under one weight
    double t = 0, var = 0, top = 0, sys = 0;
    double rnd = 0, rnd_rows = 0;    // sum of |w| rnd, and the sum over rows of its square
    double jump = 0, jump_rows = 0;  // the same of |w| jump
    double ratio(bool shared) const;
  };
  struct Columns {  // Sums of every column, one array for each
    std::vector<double> t, var, top, sys, rnd, rnd_rows, jump, jump_rows;
    void resize(size_t count);
    Sums at(size_t i) const;
  };

 private:
  void keep(double ratio, int weight, const char* what, int64_t index);

  int64_t cols_ = 0, elements_ = 0;
  bool shared_ = false;
  // Per weight (gain, bias, shrink): columns, blocks of 16, 64, 128 columns, everything.
  Columns columns_[3];
  std::vector<Sums> blocks16_[3], blocks64_[3], blocks128_[3], all_[3];
  double noise_ = 0, step_ = 0;  // sum of squared residuals by prediction; the most that one step of the format is
  Worst worst_in_rows_;          // of groups that lie inside one row
};

// Rule 5. The chosen ids [rows, k] may differ from the best k only where scores differ by less than ten of their
// sigmas; exactly equal scores of sigma zero go to the lowest id. Returns the worst violation in sigmas (infinity: ids
// out of range, twice, or a tie to a higher id) and its row. They must stand in the order of their scores.
struct SelectionResult {
  double worst = 0;
  int64_t row = 0;
  std::string what;
};
SelectionResult selection(std::span<const double> scores, std::span<const double> sigma, int64_t rows, int64_t n,
                          std::span<const int32_t> ids, int64_t k);

}  // namespace mettle::judge
