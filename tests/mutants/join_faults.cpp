// Faults of join. Those inside the norm are in a copy of the reference.
#include "common_faults.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

using A = JoinArgs;
using C = Common<JoinOp>;

enum class F {
  kNone,
  kRankTwice,
  kLastRankMissing,
  kLastRankOfLastRowMissing,
  kPartialOfNeighbour,
  kRankSumBf16,
  kResidualNotUpdated,
  kNormOfOldResidual,
  kNormOfFirstRow,
  kMeanWithoutOne,
  kMeanWithoutTail,
  kMeanIsSum,
  kMeanSubtracted,
  kEps,
  kEpsOutsideTheRoot,
  kEpsMissing,
  kRootBf16,
  kWithoutOne,
  kOnePlusWeightBf16,
  kWeightOfNeighbour,
  kTruncated,
  kXFromRoundedResidual,
  kDenormalsFlushed,
  kSquaresInBf16,
  kXColumnSkipped,
  kXLeftOut,
};

float bf16(float x) { return bf16_to_float(float_to_bf16(x)); }

void row(const A& a, int r, F fault) {
  const JoinProblem& p = a.problem;
  const int64_t n = p.hidden;
  float* residual = out_of(a).row(r);
  const std::vector<float> old(residual, residual + n);
  for (size_t i = 0; i < a.partials.size(); ++i) {
    const bool last = i + 1 == a.partials.size();
    if (last && (fault == F::kLastRankMissing || (fault == F::kLastRankOfLastRowMissing && r + 1 == a.rows))) continue;
    const int64_t from = fault == F::kPartialOfNeighbour && last && r > 0 ? r - 1 : r;
    for (int64_t c = 0; c < n; ++c) {
      float add = a.partials[i][from * n + c];
      if (fault == F::kRankTwice && last) add *= 2;
      residual[c] += add;
      if (fault == F::kRankSumBf16) residual[c] = bf16(residual[c]);
      if (fault == F::kDenormalsFlushed && std::fabs(residual[c]) < 1e-3f) residual[c] = 0;
    }
  }
  const std::vector<float> now(residual, residual + n);
  const float* of = fault == F::kNormOfOldResidual ? old.data()
                    : fault == F::kNormOfFirstRow  ? out_of(a).data
                                                   : residual;
  double sum = 0, mean = 0;
  const int64_t tail = fault == F::kMeanWithoutTail ? n - n % 16 - (n % 16 == 0 ? 16 : 0) : n;
  if (fault == F::kMeanSubtracted)
    for (int64_t c = 0; c < n; ++c) mean += static_cast<double>(of[c]) / static_cast<double>(n);
  for (int64_t c = 0; c < tail; ++c) {
    const double x = fault == F::kSquaresInBf16 ? bf16(of[c]) : of[c];
    sum += (x - mean) * (x - mean);
  }
  const double count = fault == F::kMeanWithoutOne ? static_cast<double>(n - 1)
                       : fault == F::kMeanIsSum    ? 1.0
                                                   : static_cast<double>(n);
  const double eps = fault == F::kEps ? 1e-5 : fault == F::kEpsMissing ? 1e-30 : static_cast<double>(p.eps);
  auto scale = static_cast<float>(1 / std::sqrt(sum / count + eps));
  if (fault == F::kEpsOutsideTheRoot) scale = static_cast<float>(1 / (std::sqrt(sum / count) + eps));
  if (fault == F::kRootBf16) scale = bf16(scale);
  for (int64_t c = 0; c < n; ++c) {
    if (fault == F::kXLeftOut && r + 1 == a.rows) break;
    if (fault == F::kXColumnSkipped && c + 1 == n) break;
    float w = a.weight[fault == F::kWeightOfNeighbour && c == 33 ? c + 1 : c];
    if (p.plus_one && fault != F::kWithoutOne) w += 1;
    if (fault == F::kOnePlusWeightBf16) w = bf16(w);
    const float x = (fault == F::kXFromRoundedResidual ? bf16(now[static_cast<size_t>(c)])
                                                       : now[static_cast<size_t>(c)] - static_cast<float>(mean)) *
                    scale * w;
    const int64_t at = r * n + c;
    if (p.activation == Activation::kF32)
      a.x.as<float>()[at] = x;
    else if (fault == F::kTruncated)
      a.x.as<uint16_t>()[at] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
    else
      a.x.as<uint16_t>()[at] = float_to_bf16(x);
  }
  if (fault == F::kResidualNotUpdated) std::copy(old.begin(), old.end(), residual);
}

template <F fault>
void copy(const Tactic&, const A& a, Stream&) {
  for (int r = 0; r < a.rows; ++r) row(a, r, fault);
}

void x_one_past_the_end(const Tactic& t, const A& a, Stream& s) {
  right<JoinOp>(t, a, s);
  a.x.as<uint16_t>()[a.x.shape.elements()] = 0x3F80;
}
// Two members add the last partial to the same columns.
void members_overlap(const Tactic& t, const A& a, Stream& s) {
  right<JoinOp>(t, a, s);
  if (s.team->members() < 2 || a.partials.empty()) return;
  for (int64_t c = a.problem.hidden / 2; c < a.problem.hidden / 2 + 4; ++c)
    out_of(a).at(a.rows - 1, c) += a.partials.back()[int64_t{a.rows - 1} * a.problem.hidden + c];
}

constexpr Fault<JoinOp> kFaults[] = {
    {"rank_twice", copy<F::kRankTwice>},
    {"last_rank_missing", copy<F::kLastRankMissing>},
    {"last_rank_of_last_row_missing", copy<F::kLastRankOfLastRowMissing>},
    {"partial_of_neighbour_row", copy<F::kPartialOfNeighbour>},
    {"rank_sum_bf16", copy<F::kRankSumBf16>},
    {"residual_not_updated", copy<F::kResidualNotUpdated>},
    {"norm_of_old_residual", copy<F::kNormOfOldResidual>},
    {"norm_of_first_row", copy<F::kNormOfFirstRow>},
    {"mean_over_one_less", copy<F::kMeanWithoutOne>},
    {"mean_without_tail", copy<F::kMeanWithoutTail>},
    {"mean_is_a_sum", copy<F::kMeanIsSum>},
    {"mean_subtracted", copy<F::kMeanSubtracted>},
    {"eps_ten_times", copy<F::kEps>},
    {"eps_outside_the_root", copy<F::kEpsOutsideTheRoot>},
    {"eps_missing", copy<F::kEpsMissing>},
    {"root_in_bf16", copy<F::kRootBf16>},
    {"norm_without_plus_one", copy<F::kWithoutOne>},
    {"one_plus_weight_in_bf16", copy<F::kOnePlusWeightBf16>},
    {"weight_of_neighbour_column", copy<F::kWeightOfNeighbour>},
    {"x_truncated", copy<F::kTruncated>},
    {"x_from_rounded_residual", copy<F::kXFromRoundedResidual>},
    {"small_values_flushed", copy<F::kDenormalsFlushed>},
    {"squares_of_bf16", copy<F::kSquaresInBf16>},
    {"x_last_column_skipped", copy<F::kXColumnSkipped>},
    {"x_last_row_skipped", copy<F::kXLeftOut>},
    {"x_one_past_the_end", x_one_past_the_end},
    {"members_overlap", members_overlap},
    {"residual_rounded_to_bf16", C::rounded_to_bf16},
    {"residual_column_one_percent", C::column_one_percent},
    {"neighbour_leaks", C::neighbour_leaks},
    {"odd_rows_wrong", C::odd_rows_wrong},
    {"wrong_from_64_rows_on", C::wrong_from_64_rows_on},
    {"data_race", C::data_race},
    {"loops_forever", C::loops_forever},
};
constexpr Fault<JoinOp> kCopies[] = {{"copy", copy<F::kNone>}};

}  // namespace

template <>
std::span<const Fault<JoinOp>> faults_of() {
  return kFaults;
}
template <>
std::span<const Fault<JoinOp>> copies_of() {
  return kCopies;
}

}  // namespace mettle::mutants
