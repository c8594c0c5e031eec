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
  bool saturates = false;  // what lies beyond becomes the largest
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {24, -125, 0x1.fffffep127};
    case DType::kBF16:
      return {8, -125, 0x1.fep127};
    case DType::kE4M3:
      return {4, -5, 448, true};
    default:
      fail(Code::kInternal, fmt::format("judge: no rule for outputs of {}", name_of(dtype)));
  }
}

struct Scale {  // what depends on the format alone, looked up once per output
  explicit Scale(DType dtype)
      : least(std::ldexp(1.0, format_of(dtype).exponent - 1)),
        step(std::ldexp(1.0, 1 - format_of(dtype).bits)),
        largest(format_of(dtype).largest),
        saturates(format_of(dtype).saturates) {}
  double least;  // smallest normal number: below it the step stays the same
  double step;   // distance of neighbours at one
  double largest;
  bool saturates;

  // The power of two at or below |x|: its bits without sign and mantissa, so 0 for zero and double subnormals.
  static double power_below(double x) {
    return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & uint64_t{0x7FF} << 52);
  }
  double quantum(double x) const { return std::min(std::max(power_below(x), least), 0x1p1023) * step; }
  // Adding 1.5 * 2^52 steps leaves no bit below a step; the sum is rounded as the machine rounds, to nearest even.
  double rounded(double of) const {
    const double x = in_range(of);
    const double shift = quantum(x) * 0x1.8p52, y = (x + shift) - shift;
    return std::fabs(x) < 0x1p128 && !(std::fabs(y) > largest) ? y : std::isnan(x) ? x : std::copysign(kInfinity, x);
  }
  double in_range(double x) const { return saturates && std::fabs(x) > largest ? std::copysign(largest, x) : x; }
  double half(double expected, double got) const {
    const double q = quantum(got), size = std::fabs(got);
    const bool power = size == power_below(got) && size > least;
    return power && std::fabs(expected) < size ? q / 4 : q / 2;  // below a power of two the step is half
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
  const Scale scale(dtype);
  const double distance = std::fabs(got - scale.in_range(expected));
  if (std::isnan(distance)) return distance;
  return std::max(distance - scale.half(expected, got), 0.0);
}

ElementResult element(const Expected& e, std::span<const float> got) {
  check_sizes(e, got.size());
  const Scale scale(e.dtype);
  ElementResult r;
  for (int64_t row = 0, i = 0; row < e.rows; ++row) {
    for (int64_t col = 0; col < e.cols; ++col, ++i) {
      const auto at = static_cast<size_t>(i);
      const double g = got[at], v = scale.in_range(e.value[at]), distance = std::fabs(g - v);
      double sigmas = 0;
      const double jump = e.jump[at] + kFloor;
      if (!(distance <= jump)) {
        const double over = distance - scale.half(v, g) - jump;
        // Clearly below the worst so far and the limit: its sigmas would change nothing.
        const double below = std::min(r.worst, kElement), s2 = e.sys[at] * e.sys[at] + e.rnd[at] * e.rnd[at];
        if (over * over < 0.999 * below * below * s2) continue;
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
  // As of an element: what jumps explain is explained whole, so only what lies beyond them is held against the rest.
  const double over = std::fabs(t) - std::min(jump, 3 * std::sqrt(jump2));
  const double limit = kGroup * std::sqrt(var + rnd2) + kFlips * top + kShared * sys;
  return over <= 0 ? 0 : over / std::max(limit, 1e-300);
}

namespace {

constexpr const char* kWeights[3] = {"gain", "bias", "shrink"};

// What a part of a group that lies in one row adds.
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

constexpr int64_t kBlock = 16;  // columns that are worked on at a time, in arrays: one loop for each step

// A block of one row, up to 16 columns: what its elements add under each weight.
class Block {
 public:
  Block(const Scale& scale, const Expected& e, std::span<const float> got, int64_t first, int64_t count, bool spread)
      : count_(count),
        spread_(spread),
        sys_(e.sys.data() + first),
        rnd_(e.rnd.data() + first),
        jump_(e.jump.data() + first) {
    const double* value = e.value.data() + first;
    double jump2[kBlock], s2[kBlock];
    for (int64_t i = 0; i < count; ++i) {
      q_[i] = scale.quantum(value[i]);
      r_[i] = static_cast<double>(got[static_cast<size_t>(first + i)]) - scale.rounded(value[i]);
      s2[i] = sys_[i] * sys_[i] + rnd_[i] * rnd_[i];
      jump2[i] = jump_[i] * jump_[i];
    }
    for (int64_t i = 0; i < count; ++i) {
      v_[i] = s2[i] + std::sqrt(s2[i]) * q_[i] + 1e-6 * q_[i] * q_[i] + kFloor * kFloor;
      const double vj = v_[i] + jump2[i], root = 1 / std::sqrt(vj);
      weight_[0][i] = value[i] / vj;
      weight_[1][i] = root;
      weight_[2][i] = value[i] < 0 ? -root : value[i] > 0 ? root : 0;
    }
    for (int64_t i = 0; i < count; ++i) {
      const double z2 = s2[i] + jump2[i], r = r_[i], q = q_[i];
      const double predicted = z2 + std::sqrt(z2) * q + 1e-4 * q * q + kFloor * kFloor;
      noise_[i] = std::min(r * r / predicted, 1e4);
      step_[i] = std::min(q * q / predicted, 1e4);
    }
  }

  void add_noise(double& sum, double& largest_step) const {
    for (int64_t i = 0; i < count_; ++i) sum += noise_[i];
    for (int64_t i = 0; i < count_; ++i) largest_step = std::max(largest_step, step_[i]);
  }

  // Adds them to the columns' sums, returns what the block adds.
  Part weigh(int w, Groups::Columns& to, size_t first) const {
    double t[kBlock], var[kBlock], top[kBlock], shift[kBlock];
    for (int64_t i = 0; i < count_; ++i) {
      const double wt = weight_[w][i], a = std::fabs(wt);
      t[i] = wt * r_[i];
      var[i] = wt * wt * v_[i];
      top[i] = a * q_[i];
      shift[i] = a * sys_[i];
    }
    for (int64_t i = 0; i < count_; ++i) {
      const size_t at = first + static_cast<size_t>(i);
      to.t[at] += t[i];
      to.var[at] += var[i];
      to.top[at] = std::max(to.top[at], top[i]);
      to.sys[at] += shift[i];
    }
    Part part;
    for (int64_t i = 0; i < count_; ++i) {
      part.t += t[i];
      part.var += var[i];
      part.top = std::max(part.top, top[i]);
      part.sys += shift[i];
    }
    for (int64_t i = 0; spread_ && i < count_; ++i) {
      const size_t at = first + static_cast<size_t>(i);
      const double a = std::fabs(weight_[w][i]), own_rnd = a * rnd_[i], own_jump = a * jump_[i];
      to.rnd[at] += own_rnd;
      to.rnd_rows[at] += own_rnd * own_rnd;
      to.jump[at] += own_jump;
      to.jump_rows[at] += own_jump * own_jump;
      part.rnd += own_rnd;
      part.jump += own_jump;
    }
    return part;
  }

 private:
  int64_t count_;
  bool spread_;  // rnd or jump is not zero somewhere
  const double *sys_, *rnd_, *jump_;
  double q_[kBlock], r_[kBlock], v_[kBlock], weight_[3][kBlock], noise_[kBlock], step_[kBlock];
};

}  // namespace

void Groups::Columns::resize(size_t count) {
  for (auto* sums : {&t, &var, &top, &sys, &rnd, &rnd_rows, &jump, &jump_rows}) sums->resize(count);
}

Groups::Sums Groups::Columns::at(size_t i) const {
  return {t[i], var[i], top[i], sys[i], rnd[i], rnd_rows[i], jump[i], jump_rows[i]};
}

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
  const auto zero = [](const std::vector<double>& x) {
    return std::all_of(x.begin(), x.end(), [](double y) { return y == 0; });
  };
  const bool spread = !zero(e.rnd) || !zero(e.jump);
  for (int64_t row = 0; row < e.rows; ++row) {
    for (int64_t col = 0; col < cols_; col += kBlock) {
      const Block block(scale, e, got, row * cols_ + col, std::min(kBlock, cols_ - col), spread);
      block.add_noise(noise_, step_);
      for (int w = 0; w < 3; ++w)
        in16[w][static_cast<size_t>(col / kBlock)] = block.weigh(w, columns_[w], static_cast<size_t>(col));
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
  const auto see = [&](double ratio, int w, const char* what, size_t i) {
    if (!(ratio <= out.ratio))
      out = {std::isnan(ratio) ? kInfinity : ratio, fmt::format("{} of {} {}", kWeights[w], what, i)};
  };
  const auto look = [&](const std::vector<Sums>* groups, const char* what) {
    for (int w = 0; w < 3; ++w)
      for (size_t i = 0; i < groups[w].size(); ++i) see(groups[w][i].ratio(shared_), w, what, i);
  };
  if (elements_ == 0) return out;
  for (int w = 0; w < 3; ++w)
    for (size_t i = 0; i < columns_[w].t.size(); ++i) see(columns_[w].at(i).ratio(shared_), w, "column", i);
  look(blocks16_, "column block16");
  look(blocks64_, "column block64");
  look(blocks128_, "column block128");
  look(all_, "all");
  const auto n = static_cast<double>(elements_);
  // Outputs of a coarse format flip seldom, and one flip is far beyond its own variance.
  const double beyond = noise_ - kNoiseSteps * step_;
  const double noise = (beyond < 0 ? 0 : beyond) / n / (kNoise + 40 / std::sqrt(n));
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
