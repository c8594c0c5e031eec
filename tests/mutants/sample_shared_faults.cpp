// Faults of sample where threads share one row: in the slices, at their borders and in putting them together. They are
// in a plain copy that cuts each row into three.
#include <algorithm>
#include <cmath>
#include <vector>

#include "healthy.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

using A = SampleArgs;

enum class F {
  kNone,
  kBorderLost,
  kBorderTwice,
  kBorderNotDrawn,
  kLastSliceSkipped,
  kPaddingInLastSlice,
  kSliceOfRowBefore,
  kNanOfMiddleLost,
  kBestOfFirst,
  kBestTieToLaterSlice,
  kOrderTieToLaterSlice,
  kDrawnSliceBySlice,
  kPenaltyTwiceAtBorder,
  kBiasTwiceAtBorder,
  kBiasLostAtBorder,
  kPenaltyLostAtBorder,
  kMaskOfOneSlice,
  kPenaltiesOfLastSliceLost,
  kWeightsFromOwnMaximum,
  kTotalWithoutLastSlice,
  kTopPOfFirstSlice,
  kMinPFromOwnMaximum,
  kTopKOfEachSlice,
  kTopKShared,
  kRandomUsedTwice,
  kRandomOfSlice,
  kNormaliserOfOneSlice,
  kSumsNotRescaled,
  kAlternativesOfOneSlice,
  kAlternativesTieToLater,
};

constexpr int kSlices = 3;

struct Slice {
  int begin = 0, end = 0;
  bool finite = true;
  double top = -INFINITY, sum = 0;  // of raw logits: the largest, exp of the distance from it
  int32_t best = 0;                 // of adjusted ones
};

struct Token {
  double value, weight;
  int32_t id;
  int slice;
};

class Row {
 public:
  Row(const A& a, int r, F fault)
      : fault_(fault),
        row_(a.params[static_cast<size_t>(r)]),
        logits_(a.logits.as<float>() + int64_t{r} * a.problem.vocab),
        before_(r > 0 ? logits_ - a.problem.vocab : logits_),
        usable_(a.problem.usable) {
    for (int s = 0; s < kSlices; ++s) {
      const Span span = share_of(usable_, s, kSlices);
      slices_[s] = {static_cast<int>(span.begin), static_cast<int>(span.end)};
    }
    if (is(F::kBorderLost)) --slices_[0].end;
    if (is(F::kBorderTwice)) ++slices_[1].end;
    if (is(F::kLastSliceSkipped)) slices_[2].end = slices_[2].begin + 1;
    if (is(F::kPaddingInLastSlice)) slices_[2].end = a.problem.vocab;
    adjusted_.assign(logits_, logits_ + a.problem.vocab);
  }

  void run(SampleResult& result) {
    result = {};
    for (int s = 0; s < kSlices; ++s) look(s);
    for (int s = 0; s < kSlices; ++s)
      if (!slices_[s].finite && !(is(F::kNanOfMiddleLost) && s == 1)) return;
    const double log_sum = normaliser();
    int32_t best = slices_[0].best;
    for (int s = 1; s < kSlices && !is(F::kBestOfFirst); ++s) {
      const double x = adjusted(slices_[s].best), y = adjusted(best);
      if (x > y || (x == y && is(F::kBestTieToLaterSlice))) best = slices_[s].best;
    }
    if (adjusted(best) == -INFINITY) return;
    result.token = row_.temperature > 0 ? draw(best) : best;
    result.logprob = static_cast<float>(logits_[result.token] - log_sum);
    tell_alternatives(result, best, log_sum);
  }

 private:
  bool is(F fault) const { return fault_ == fault; }
  double adjusted(int32_t id) const { return adjusted_[static_cast<size_t>(id)]; }

  void look(int s) {
    Slice& own = slices_[s];
    const float* logits = is(F::kSliceOfRowBefore) && s == 2 ? before_ : logits_;
    for (int i = own.begin; i < own.end; ++i) {
      own.finite = own.finite && std::isfinite(logits[i]);
      own.top = std::max(own.top, static_cast<double>(logits[i]));
    }
    if (!own.finite) {
      std::fill(adjusted_.begin() + own.begin, adjusted_.begin() + own.end, -INFINITY);  // a sort needs an order
      return;
    }
    for (int i = own.begin; i < own.end; ++i) own.sum += std::exp(static_cast<double>(logits[i]) - own.top);
    // The id behind the slice belongs to the next one.
    const auto mine = [&](int32_t id, F twice, F lost) {
      return id >= own.begin + (is(lost) ? 1 : 0) && id < own.end + (is(twice) ? 1 : 0);
    };
    for (const TokenBias& b : row_.biases)
      if (mine(b.id, F::kBiasTwiceAtBorder, F::kBiasLostAtBorder) && !(is(F::kMaskOfOneSlice) && s > 0))
        adjusted_[static_cast<size_t>(b.id)] += static_cast<double>(b.bias);
    for (const TokenCount& c : row_.counts) {
      if (!mine(c.id, F::kPenaltyTwiceAtBorder, F::kPenaltyLostAtBorder) ||
          (is(F::kPenaltiesOfLastSliceLost) && s == 2))
        continue;
      double& l = adjusted_[static_cast<size_t>(c.id)];
      if (c.in_prompt || c.in_output > 0) l = l > 0 ? l / row_.repetition : l * row_.repetition;
      if (c.in_output > 0) l -= static_cast<double>(row_.presence) + static_cast<double>(row_.frequency) * c.in_output;
    }
  }
  void find_best() {
    for (Slice& s : slices_) {
      s.best = s.begin;
      for (int i = s.begin + 1; i < s.end; ++i)
        if (adjusted(i) > adjusted(s.best)) s.best = i;
    }
  }

  double normaliser() {
    find_best();
    double top = -INFINITY, sum = 0;
    for (const Slice& s : slices_) top = std::max(top, s.top);
    for (const Slice& s : slices_) {
      if (is(F::kNormaliserOfOneSlice) && s.top != top) continue;
      sum += is(F::kSumsNotRescaled) ? s.sum : s.sum * std::exp(s.top - top);
    }
    return top + std::log(sum);
  }

  // In the order in which they are drawn, with their weights.
  std::vector<Token> tokens(int32_t best) const {
    std::vector<Token> out;
    for (int s = 0; s < kSlices; ++s) {
      const double top = adjusted(is(F::kWeightsFromOwnMaximum) ? slices_[s].best : best);
      for (int i = slices_[s].begin + (is(F::kBorderNotDrawn) && s > 0 ? 1 : 0); i < slices_[s].end; ++i)
        out.push_back({adjusted(i), std::exp((adjusted(i) - top) / static_cast<double>(row_.temperature)), i, s});
    }
    std::sort(out.begin(), out.end(), [this](const Token& a, const Token& b) {
      if (is(F::kDrawnSliceBySlice) && row_.top_k == 0 && a.slice != b.slice) return a.slice < b.slice;
      if (a.value != b.value) return a.value > b.value;
      if (is(F::kOrderTieToLaterSlice) && a.slice != b.slice) return a.slice > b.slice;
      return a.id < b.id;
    });
    return out;
  }

  void keep_top_k(std::vector<Token>& order) const {
    if (row_.top_k <= 0) return;
    const int of_each = is(F::kTopKShared) ? (row_.top_k + kSlices - 1) / kSlices : row_.top_k;
    if (is(F::kTopKOfEachSlice) || is(F::kTopKShared)) {
      int held[kSlices] = {};
      std::erase_if(order, [&](const Token& t) { return ++held[t.slice] > of_each; });
    } else {
      order.resize(std::min(order.size(), static_cast<size_t>(row_.top_k)));
    }
  }

  static double mass(const std::vector<Token>& order, int slice = -1) {
    double sum = 0;
    for (const Token& t : order)
      if (slice < 0 || t.slice == slice) sum += t.weight;
    return sum;
  }

  int32_t draw(int32_t best) const {
    std::vector<Token> order = tokens(best);
    keep_top_k(order);
    if (row_.top_p < 1) {
      double total = mass(order), before = 0;
      if (is(F::kTotalWithoutLastSlice)) total -= mass(order, 2);
      if (is(F::kTopPOfFirstSlice)) total = mass(order, 0);
      size_t keep = 0;
      for (; keep < order.size() && (keep == 0 || before < row_.top_p * total); ++keep) before += order[keep].weight;
      order.resize(keep);
    }
    const auto light = [&](const Token& t) {
      if (!is(F::kMinPFromOwnMaximum)) return t.weight < row_.min_p;
      const double top = adjusted(slices_[t.slice].best);
      return std::exp((t.value - top) / static_cast<double>(row_.temperature)) < row_.min_p;
    };
    if (row_.min_p > 0) std::erase_if(order, light);
    double target = row_.random * mass(order), sum = 0;
    if (is(F::kRandomUsedTwice) || is(F::kRandomOfSlice)) {
      int chosen = 0;
      for (double until = mass(order, 0); chosen < kSlices - 1 && until <= target;) until += mass(order, ++chosen);
      if (is(F::kRandomOfSlice)) chosen = slice_of(best);
      std::erase_if(order, [&](const Token& t) { return t.slice != chosen; });
      target = row_.random * mass(order);
    }
    for (const Token& t : order)
      if ((sum += t.weight) > target) return t.id;
    return order.empty() ? best : order.back().id;
  }

  int slice_of(int32_t id) const {
    int s = 0;
    while (s < kSlices - 1 && id >= slices_[s].end) ++s;
    return s;
  }

  void tell_alternatives(SampleResult& result, int32_t best, double log_sum) const {
    std::vector<int32_t> ids;
    for (int s = 0; s < kSlices; ++s)
      for (int i = slices_[s].begin; i < slices_[s].end && i < usable_; ++i)
        if (!is(F::kAlternativesOfOneSlice) || s == slice_of(best)) ids.push_back(i);
    const auto wanted = std::min<size_t>(static_cast<size_t>(row_.top_logprobs), ids.size());
    std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(wanted), ids.end(),
                      [&](int32_t a, int32_t b) {
                        if (logits_[a] != logits_[b]) return logits_[a] > logits_[b];
                        if (is(F::kAlternativesTieToLater) && slice_of(a) != slice_of(b))
                          return slice_of(a) > slice_of(b);
                        return a < b;
                      });
    for (size_t i = 0; i < wanted; ++i) {
      result.top_ids[i] = ids[i];
      result.top_logprobs[i] = static_cast<float>(logits_[ids[i]] - log_sum);
    }
  }

  F fault_;
  const SampleRow& row_;
  const float* logits_;
  const float* before_;
  int usable_;
  Slice slices_[kSlices];
  std::vector<double> adjusted_;
};

template <F fault>
void copy(const Tactic&, const A& a, Stream& stream) {
  stream.team->run([&](int member) {
    const Span rows = share_of(a.rows, member, stream.team->members());
    for (int64_t r = rows.begin; r < rows.end; ++r)
      Row(a, static_cast<int>(r), fault).run(a.results[static_cast<size_t>(r)]);
  });
}

template <F fault>
constexpr Fault<SampleOp> named(std::string_view name) {
  return {name, copy<fault>, "cpu_shared"};
}
constexpr Fault<SampleOp> kFaults[] = {
    named<F::kNone>("shared_copy"),
    named<F::kBorderLost>("shared_border_lost"),
    named<F::kBorderTwice>("shared_border_twice"),
    named<F::kBorderNotDrawn>("shared_border_not_drawn"),
    named<F::kLastSliceSkipped>("shared_last_slice_skipped"),
    named<F::kPaddingInLastSlice>("shared_padding_in_last_slice"),
    named<F::kSliceOfRowBefore>("shared_last_slice_of_row_before"),
    named<F::kNanOfMiddleLost>("shared_nan_of_one_slice_lost"),
    named<F::kBestOfFirst>("shared_best_of_first_slice"),
    named<F::kBestTieToLaterSlice>("shared_best_tie_to_later_slice"),
    named<F::kOrderTieToLaterSlice>("shared_order_tie_to_later_slice"),
    named<F::kDrawnSliceBySlice>("shared_drawn_slice_by_slice"),
    named<F::kPenaltyTwiceAtBorder>("shared_penalty_twice_at_border"),
    named<F::kBiasTwiceAtBorder>("shared_bias_twice_at_border"),
    named<F::kBiasLostAtBorder>("shared_bias_lost_at_border"),
    named<F::kPenaltyLostAtBorder>("shared_penalty_lost_at_border"),
    named<F::kMaskOfOneSlice>("shared_mask_of_one_slice"),
    named<F::kPenaltiesOfLastSliceLost>("shared_penalties_of_last_slice_lost"),
    named<F::kWeightsFromOwnMaximum>("shared_weights_from_own_maximum"),
    named<F::kTotalWithoutLastSlice>("shared_top_p_total_without_last_slice"),
    named<F::kTopPOfFirstSlice>("shared_top_p_of_first_slice"),
    named<F::kMinPFromOwnMaximum>("shared_min_p_from_own_maximum"),
    named<F::kTopKOfEachSlice>("shared_top_k_of_each_slice"),
    named<F::kTopKShared>("shared_top_k_divided_among_slices"),
    named<F::kRandomUsedTwice>("shared_random_for_slice_and_token"),
    named<F::kRandomOfSlice>("shared_drawn_in_slice_of_best"),
    named<F::kNormaliserOfOneSlice>("shared_normaliser_of_one_slice"),
    named<F::kSumsNotRescaled>("shared_sums_not_rescaled"),
    named<F::kAlternativesOfOneSlice>("shared_alternatives_of_one_slice"),
    named<F::kAlternativesTieToLater>("shared_alternatives_tie_to_later"),
};

}  // namespace

std::span<const Fault<SampleOp>> sample_shared_faults() { return kFaults; }

}  // namespace mettle::mutants
