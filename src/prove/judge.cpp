#include "prove/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "the judge rests on IEEE comparisons: NaN must stay NaN"
#endif

namespace mettle::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFloor = 0x1p-126;  // hardware may flush below the smallest normal float32

struct Format {
  int bits;      // significant bits
  int exponent;  // smallest exponent in frexp's convention
  double largest;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {24, -125, 0x1.fffffep127};
    case DType::kBF16:
      return {8, -125, 0x1.fep127};
    default:
      fail(Code::kInternal, fmt::format("judge: no rule for outputs of {}", name_of(dtype)));
  }
}

struct Scale {  // what depends on the format alone, looked up once per output
  explicit Scale(DType dtype) : format(format_of(dtype)) {}
  Format format;

  // Exponent in frexp's convention, from the bits; zero and double subnormals say -1022, so zero gets the step of the
  // smallest subnormal (frexp(0) says 0: that would be the step of one half).
  static int exponent(double x) { return static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7FF) - 1022; }
  static double power(int e) { return std::bit_cast<double>(static_cast<uint64_t>(e + 1023) << 52); }

  double quantum(double x) const { return power(std::max(exponent(x), format.exponent) - format.bits); }
  double rounded(double x) const {
    if (!std::isfinite(x)) return x;
    const int e = std::max(exponent(x), format.exponent) - format.bits;
    const double y = std::nearbyint(x * power(-e)) * power(e);
    return std::fabs(y) > format.largest ? std::copysign(kInfinity, x) : y;
  }
  double half(double expected, double got) const {
    const double q = quantum(got);
    const bool power = (std::bit_cast<uint64_t>(got) & 0xFFFFFFFFFFFFF) == 0 && exponent(got) > format.exponent;
    return power && std::fabs(expected) < std::fabs(got) ? q / 4 : q / 2;  // below a power of two the step is half
  }
};

double sigma_of(const Expected& e, size_t i) { return std::sqrt(e.sys[i] * e.sys[i] + e.rnd[i] * e.rnd[i]); }

void fail_at(ElementResult& r, int64_t row, int64_t col) {
  if (r.failures++ == 0) {
    r.row_first = r.row_last = row;
    r.col_first = r.col_last = col;
  }
  r.row_first = std::min(r.row_first, row);
  r.row_last = std::max(r.row_last, row);
  r.col_first = std::min(r.col_first, col);
  r.col_last = std::max(r.col_last, col);
}

void check_sizes(const Expected& e, size_t got) {
  const auto n = static_cast<size_t>(e.rows * e.cols);
  CHECK(e.value.size() == n && e.sys.size() == n && e.rnd.size() == n && e.jump.size() == n && got == n,
        fmt::format("judge: [{}, {}] expected, {} came", e.rows, e.cols, got));
}

}  // namespace

double quantum(double x, DType dtype) { return Scale(dtype).quantum(x); }
double rounded(double x, DType dtype) { return Scale(dtype).rounded(x); }

double excess(double expected, double got, DType dtype) {
  const double distance = std::fabs(got - expected);
  if (std::isnan(distance)) return distance;
  return std::max(distance - Scale(dtype).half(expected, got), 0.0);
}

ElementResult element(const Expected& e, std::span<const float> got) {
  check_sizes(e, got.size());
  const Scale scale(e.dtype);
  ElementResult r;
  for (int64_t row = 0, i = 0; row < e.rows; ++row) {
    for (int64_t col = 0; col < e.cols; ++col, ++i) {
      const auto at = static_cast<size_t>(i);
      const double g = got[at], v = e.value[at], distance = std::fabs(g - v);
      double sigmas = 0;
      const double jump = e.jump[at] + kFloor;
      if (!(distance <= jump)) {
        const double over = distance - scale.half(v, g) - jump;
        if (!(over <= 0)) sigmas = over / std::max(sigma_of(e, at), 1e-300);
      }
      const bool wrong = !(sigmas <= kElement) || !std::isfinite(g) || !std::isfinite(v);
      if (wrong) {
        if (!std::isfinite(sigmas) || !std::isfinite(g) || !std::isfinite(v)) sigmas = kInfinity;
        fail_at(r, row, col);
      }
      if (sigmas > r.worst) {
        const double reach = jump + kElement * sigma_of(e, at) + scale.quantum(scale.rounded(v)) / 2;
        r.worst = sigmas;
        r.at = {row, col, g, v - reach, v + reach};
      }
    }
  }
  return r;
}

ElementResult exact(const Expected& e, std::span<const float> got) {
  check_sizes(e, got.size());
  const Scale scale(e.dtype);
  ElementResult r;
  for (int64_t row = 0, i = 0; row < e.rows; ++row) {
    for (int64_t col = 0; col < e.cols; ++col, ++i) {
      const double want = scale.rounded(e.value[static_cast<size_t>(i)]), g = got[static_cast<size_t>(i)];
      if (g == want) continue;
      if (r.failures == 0) {
        r.worst = kInfinity;
        r.at = {row, col, g, want, want};
      }
      fail_at(r, row, col);
    }
  }
  return r;
}

double Groups::Sums::ratio(bool shared) const {
  const double rnd2 = shared ? rnd * rnd : rnd_rows, jump2 = shared ? jump * jump : jump_rows;
  const double limit =
      kGroup * std::sqrt(var + rnd2) + kFlips * top + kShared * sys + std::min(jump, 3 * std::sqrt(jump2));
  return std::fabs(t) / std::max(limit, 1e-300);
}

namespace {

constexpr const char* kWeights[3] = {"gain", "bias", "shrink"};

// What one element, or a part of a group that lies in one row, adds.
struct Part {
  double t = 0, var = 0, top = 0, sys = 0, rnd = 0, jump = 0;
  void operator+=(const Part& o) {
    t += o.t;
    var += o.var;
    top = std::max(top, o.top);
    sys += o.sys;
    rnd += o.rnd;
    jump += o.jump;
  }
};

void add_to(Groups::Sums& s, const Part& p) {
  s.t += p.t;
  s.var += p.var;
  s.top = std::max(s.top, p.top);
  s.sys += p.sys;
  s.rnd += p.rnd;
  s.rnd_rows += p.rnd * p.rnd;
  s.jump += p.jump;
  s.jump_rows += p.jump * p.jump;
}

double ratio_of(const Part& p, bool shared) {
  Groups::Sums s;
  add_to(s, p);
  return s.ratio(shared);
}

}  // namespace

void Groups::keep(double ratio, int weight, const char* what, int64_t index) {
  if (ratio <= worst_in_rows_.ratio) return;
  worst_in_rows_ = {std::isnan(ratio) ? kInfinity : ratio, fmt::format("{} of {} {}", kWeights[weight], what, index)};
}

void Groups::add(const Expected& e, std::span<const float> got) {
  check_sizes(e, got.size());
  if (e.rows == 0 || e.cols == 0) return;
  if (cols_ == 0) {
    cols_ = e.cols;
    shared_ = e.shared;
    for (int w = 0; w < 3; ++w) {
      columns_[w].resize(static_cast<size_t>(cols_));
      blocks16_[w].resize(static_cast<size_t>((cols_ + 15) / 16));
      blocks64_[w].resize(static_cast<size_t>((cols_ + 63) / 64));
      blocks128_[w].resize(static_cast<size_t>((cols_ + 127) / 128));
      all_[w].resize(1);
    }
  }
  CHECK(cols_ == e.cols, fmt::format("judge: launches of {} and {} columns in one group", cols_, e.cols));
  const Scale scale(e.dtype);
  const size_t blocks = blocks16_[0].size();
  std::vector<Part> in16[3];
  for (auto& p : in16) p.resize(blocks);
  for (int64_t row = 0; row < e.rows; ++row) {
    for (auto& p : in16) std::fill(p.begin(), p.end(), Part{});
    for (int64_t col = 0; col < cols_; ++col) {
      const auto i = static_cast<size_t>(row * cols_ + col);
      const double value = e.value[i], sys = e.sys[i], rnd = e.rnd[i], jump = e.jump[i];
      const double q = scale.quantum(value), r = got[i] - scale.rounded(value);
      const double s2 = sys * sys + rnd * rnd, v = s2 + std::sqrt(s2) * q + 1e-6 * q * q + kFloor * kFloor;
      const double vj = v + jump * jump, root = 1 / std::sqrt(vj);
      const double z2 = s2 + jump * jump;
      noise_ += std::min(r * r / (z2 + std::sqrt(z2) * q + 1e-4 * q * q + kFloor * kFloor), 1e4);
      const double weights[3] = {value / vj, root, value < 0 ? -root : value > 0 ? root : 0};
      for (int w = 0; w < 3; ++w) {
        const double wt = weights[w], a = std::fabs(wt);
        const Part part{wt * r, wt * wt * v, a * q, a * sys, a * rnd, a * jump};
        add_to(columns_[w][static_cast<size_t>(col)], part);
        in16[w][static_cast<size_t>(col / 16)] += part;
      }
    }
    for (int w = 0; w < 3; ++w) {
      Part whole, in64, in128;
      for (size_t b = 0; b < blocks; ++b) {
        const Part& p = in16[w][b];
        add_to(blocks16_[w][b], p);
        keep(ratio_of(p, shared_), w, "row-block16", row * static_cast<int64_t>(blocks) + static_cast<int64_t>(b));
        in64 += p;
        in128 += p;
        whole += p;
        if (b % 4 == 3 || b + 1 == blocks) {
          add_to(blocks64_[w][b / 4], in64);
          keep(ratio_of(in64, shared_), w, "row-block64", row);
          in64 = {};
        }
        if (b % 8 == 7 || b + 1 == blocks) {
          add_to(blocks128_[w][b / 8], in128);
          keep(ratio_of(in128, shared_), w, "row-block128", row);
          in128 = {};
        }
      }
      add_to(all_[w][0], whole);
      keep(ratio_of(whole, shared_), w, "row", row);
    }
  }
  elements_ += e.rows * e.cols;
}

Groups::Worst Groups::worst() const {
  Worst out = worst_in_rows_;
  const auto look = [&](const std::vector<Sums>* groups, const char* what) {
    for (int w = 0; w < 3; ++w)
      for (size_t i = 0; i < groups[w].size(); ++i) {
        const double ratio = groups[w][i].ratio(shared_);
        if (!(ratio <= out.ratio))
          out = {std::isnan(ratio) ? kInfinity : ratio, fmt::format("{} of {} {}", kWeights[w], what, i)};
      }
  };
  if (elements_ == 0) return out;
  look(columns_, "column");
  look(blocks16_, "column block16");
  look(blocks64_, "column block64");
  look(blocks128_, "column block128");
  look(all_, "all");
  const auto n = static_cast<double>(elements_);
  const double noise = noise_ / n / (kNoise + 40 / std::sqrt(n));
  if (!(noise <= out.ratio)) out = {std::isnan(noise) ? kInfinity : noise, "noise"};
  return out;
}

SelectionResult selection(std::span<const double> scores, std::span<const double> sigma, int64_t rows, int64_t n,
                          std::span<const int32_t> ids, int64_t k) {
  CHECK(scores.size() == static_cast<size_t>(rows * n) && sigma.size() == scores.size() &&
            ids.size() == static_cast<size_t>(rows * k) && k >= 1 && k <= n,
        fmt::format("judge: selection of {} from {} in {} rows", k, n, rows));
  SelectionResult out;
  const auto worse = [&](double by, int64_t row, std::string what) {
    if (by <= out.worst) return;
    out = {std::isnan(by) ? kInfinity : by, row, std::move(what)};
  };
  std::vector<char> chosen(static_cast<size_t>(n));
  for (int64_t row = 0; row < rows; ++row) {
    std::fill(chosen.begin(), chosen.end(), 0);
    const double* s = scores.data() + row * n;
    const double* err = sigma.data() + row * n;
    bool legal = true;
    for (int64_t j = 0; j < k; ++j) {
      const int32_t id = ids[static_cast<size_t>(row * k + j)];
      if (id < 0 || id >= n) {
        worse(kInfinity, row, fmt::format("id {} is not in 0..{}", id, n - 1));
        legal = false;
      } else if (chosen[static_cast<size_t>(id)]++ != 0) {
        worse(kInfinity, row, fmt::format("id {} was selected twice", id));
        legal = false;
      }
    }
    if (!legal) continue;
    for (int64_t j = 0; j + 1 < k; ++j) {
      const int32_t first = ids[static_cast<size_t>(row * k + j)], next = ids[static_cast<size_t>(row * k + j + 1)];
      const double rise = s[next] - s[first], error = std::hypot(err[next], err[first]);
      if (rise == 0 && error == 0 ? next < first : !(rise <= 0))
        worse(error == 0 ? kInfinity : rise / error, row,
              fmt::format("{} stands before {}, whose score is {:.3g} above", first, next, rise));
    }
    int64_t low = -1, high = -1;  // weakest chosen (highest id of equals), best left out (lowest id of equals)
    for (int64_t j = 0; j < n; ++j) {
      if (chosen[static_cast<size_t>(j)] != 0) {
        if (low < 0 || !(s[j] > s[low])) low = j;
      } else if (high < 0 || !(s[j] <= s[high])) {
        high = j;
      }
    }
    if (high < 0) continue;
    const double gap = s[high] - s[low], error = std::hypot(err[high], err[low]);
    if (gap == 0 && error == 0) {
      if (high < low) worse(kInfinity, row, fmt::format("{} and {} score the same: the lowest id wins", high, low));
    } else if (!(gap <= 0)) {
      worse(gap / std::max(error, 1e-300), row,
            fmt::format("{} was left out with a score {:.3g} above that of {}", high, gap, low));
    }
  }
  return out;
}

}  // namespace mettle::judge
