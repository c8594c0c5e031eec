// Faults of sample. Most are in a copy of the reference, at the place where a kernel would have them.
#include <algorithm>
#include <numeric>

#include "common_faults.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

using A = SampleArgs;
using C = Common<SampleOp>;

enum class F {
  kNone,
  kGreedyTieToHigherId,
  kOrderTieToHigherId,
  kLastTokenNever,
  kBlockOf64Skipped,
  kPaddingNotMasked,
  kGreedyWithoutBias,
  kNanGivesZero,
  kInfinityAccepted,
  kLogitsF16,
  kTopKLess,
  kTopKTiesKept,
  kTopPDropsCrossing,
  kTopPOfAll,
  kMinPOfSum,
  kMinPIgnored,
  kMinPBeforeTemperature,
  kCutsBeforePenalties,
  kTemperatureOnProbabilities,
  kRandomShifted,
  kRandomOfNeighbour,
  kOrderOfIds,
  kPenaltyOfNegativeDivides,
  kPresenceCountsPrompt,
  kFrequencyOnce,
  kRepetitionOfOutputOnly,
  kLogprobOfAdjusted,
  kLogprobWithTemperature,
  kLogprobSumWithoutLast,
  kTopLogprobsOfAdjusted,
  kTopLogprobsOneLess,
};

float f16(float x) { return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000u) & 0xFFFFE000u); }

struct Row {
  const A& a;
  F fault;
  const SampleRow& row;
  const SampleRow& neighbour;
  std::vector<float> logits;
  int n;
  std::vector<double> adjusted;

  Row(const A& a, int r, F fault)
      : a(a),
        fault(fault),
        row(a.params[static_cast<size_t>(r)]),
        neighbour(a.params[static_cast<size_t>(std::max(r - 1, 0))]) {
    const float* from = a.logits.as<float>() + int64_t{r} * a.problem.vocab;
    n = fault == F::kPaddingNotMasked ? a.problem.vocab : a.problem.usable;
    if (fault == F::kLastTokenNever) --n;
    logits.assign(from, from + n);
    if (fault == F::kLogitsF16)
      for (float& l : logits) l = f16(l);
  }
  void adjust() {
    adjusted.assign(logits.begin(), logits.end());
    if (fault == F::kBlockOf64Skipped)
      for (int i = n / 2 / 64 * 64; i < std::min(n, n / 2 / 64 * 64 + 64); ++i)
        adjusted[static_cast<size_t>(i)] = -INFINITY;
    if (fault != F::kGreedyWithoutBias || row.temperature > 0)
      for (const TokenBias& b : row.biases)
        if (b.id < n) adjusted[static_cast<size_t>(b.id)] += static_cast<double>(b.bias);
    for (const TokenCount& c : row.counts) {
      if (c.id >= n) continue;
      double& l = adjusted[static_cast<size_t>(c.id)];
      const bool repeated = c.in_output > 0 || (c.in_prompt && fault != F::kRepetitionOfOutputOnly);
      if (repeated) l = l > 0 || fault == F::kPenaltyOfNegativeDivides ? l / row.repetition : l * row.repetition;
      if (c.in_output > 0 || (c.in_prompt && fault == F::kPresenceCountsPrompt)) l -= static_cast<double>(row.presence);
      if (c.in_output > 0) l -= static_cast<double>(row.frequency) * (fault == F::kFrequencyOnce ? 1 : c.in_output);
    }
  }
  template <class T>
  std::vector<int32_t> order_of(const std::vector<T>& value) const {
    std::vector<int32_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
      const T p = value[static_cast<size_t>(x)], q = value[static_cast<size_t>(y)];
      if (p != q) return p > q;
      return fault == F::kOrderTieToHigherId ? x > y : x < y;
    });
    return order;
  }
  int32_t draw() const {
    std::vector<int32_t> order =
        order_of(fault == F::kCutsBeforePenalties ? std::vector<double>(logits.begin(), logits.end()) : adjusted);
    int count = row.top_k > 0 ? std::min(row.top_k, n) : n;
    if (fault == F::kTopKLess && row.top_k > 1) --count;
    if (fault == F::kTopKTiesKept)
      while (count < n && adjusted[static_cast<size_t>(order[static_cast<size_t>(count)])] ==
                              adjusted[static_cast<size_t>(order[static_cast<size_t>(count) - 1])])
        ++count;
    double top = -INFINITY, total = 0, all = 0;
    for (int i = 0; i < count; ++i) top = std::max(top, adjusted[static_cast<size_t>(order[static_cast<size_t>(i)])]);
    const auto weight_of = [&](int32_t id) {
      const double l = adjusted[static_cast<size_t>(id)] - top;
      return fault == F::kTemperatureOnProbabilities ? std::exp(l) : std::exp(l / static_cast<double>(row.temperature));
    };
    std::vector<double> weight;
    for (int i = 0; i < count; ++i) weight.push_back(weight_of(order[static_cast<size_t>(i)]));
    total = std::accumulate(weight.begin(), weight.end(), 0.0);
    for (int i = 0; i < n; ++i) all += weight_of(order[static_cast<size_t>(i)]);
    if (row.top_p < 1) {
      int keep = 0;
      double before = 0;
      const double bound = row.top_p * (fault == F::kTopPOfAll ? all : total);
      for (; keep < count && (keep == 0 || before < bound); ++keep) before += weight[static_cast<size_t>(keep)];
      if (fault == F::kTopPDropsCrossing && keep > 1) --keep;
      count = keep;
    }
    const auto below = [&](int i) {
      const double w = weight[static_cast<size_t>(i)];
      if (fault == F::kMinPOfSum) return w / total < row.min_p;
      if (fault == F::kMinPBeforeTemperature) return std::pow(w, static_cast<double>(row.temperature)) < row.min_p;
      return fault != F::kMinPIgnored && w < row.min_p;
    };
    while (count > 1 && below(count - 1)) --count;
    order.resize(static_cast<size_t>(count));
    if (fault == F::kOrderOfIds) std::sort(order.begin(), order.end());
    double target = 0, sum = 0;
    for (const int32_t id : order) target += weight_of(id);
    double random = fault == F::kRandomOfNeighbour ? neighbour.random : row.random;
    if (fault == F::kRandomShifted) random = std::min(random + 2e-3, 1.0);
    target *= random;
    for (const int32_t id : order) {
      sum += weight_of(id);
      if (sum > target) return id;
    }
    return order.back();
  }
  void run(SampleResult& result) {
    result = {};
    for (const float l : logits) {
      if (std::isfinite(l) || (fault == F::kInfinityAccepted && std::isinf(l))) continue;
      if (fault == F::kNanGivesZero) result.token = 0;
      return;
    }
    adjust();
    int32_t best = 0;
    for (int32_t i = 1; i < n; ++i) {
      const double x = adjusted[static_cast<size_t>(i)], y = adjusted[static_cast<size_t>(best)];
      if (x > y || (x == y && fault == F::kGreedyTieToHigherId)) best = i;
    }
    if (adjusted[static_cast<size_t>(best)] == -INFINITY) return;
    result.token = row.temperature > 0 ? draw() : best;
    std::vector<double> scored(logits.begin(), logits.end());
    if (fault == F::kLogprobOfAdjusted) scored = adjusted;
    if (fault == F::kLogprobWithTemperature && row.temperature > 0)
      for (double& l : scored) l /= static_cast<double>(row.temperature);
    const double top = *std::max_element(scored.begin(), scored.end());
    double sum = 0;
    for (size_t i = 0; i + (fault == F::kLogprobSumWithoutLast ? 1 : 0) < scored.size(); ++i)
      sum += std::exp(scored[i] - top);
    const double log_sum = top + std::log(sum);
    result.logprob = static_cast<float>(scored[static_cast<size_t>(result.token)] - log_sum);
    const std::vector<int32_t> order = fault == F::kTopLogprobsOfAdjusted ? order_of(adjusted) : order_of(logits);
    const int wanted = std::min({row.top_logprobs, 20, n}) - (fault == F::kTopLogprobsOneLess ? 1 : 0);
    for (int i = 0; i < wanted; ++i) {
      result.top_ids[i] = order[static_cast<size_t>(i)];
      result.top_logprobs[i] = static_cast<float>(scored[static_cast<size_t>(order[static_cast<size_t>(i)])] - log_sum);
    }
  }
};

template <F fault>
void copy(const Tactic&, const A& a, Stream& s) {
  s.team->run([&](int member) {
    const Span rows = share_of(a.rows, member, s.team->members());
    for (int64_t r = rows.begin; r < rows.end; ++r)
      Row(a, static_cast<int>(r), fault).run(a.results[static_cast<size_t>(r)]);
  });
}

template <void (*Change)(SampleRow&)>
void with(const Tactic& t, const A& a, Stream& s) {
  std::vector<SampleRow> rows(a.params.begin(), a.params.end());
  for (SampleRow& r : rows) Change(r);
  A other = a;
  other.params = rows;
  right<SampleOp>(t, other, s);
}
void params_of_first_row(const Tactic& t, const A& a, Stream& s) {
  std::vector<SampleRow> rows(a.params.begin(), a.params.end());
  for (SampleRow& r : rows) r.temperature = rows[0].temperature, r.top_k = rows[0].top_k, r.top_p = rows[0].top_p;
  A other = a;
  other.params = rows;
  right<SampleOp>(t, other, s);
}
void logprob_bf16(const Tactic& t, const A& a, Stream& s) {
  right<SampleOp>(t, a, s);
  for (SampleResult& r : a.results) r.logprob = bf16_to_float(float_to_bf16(r.logprob));
}
void last_row_skipped(const Tactic& t, const A& a, Stream& s) {
  const SampleResult before = a.results.back();
  right<SampleOp>(t, a, s);
  a.results.back() = before;
}
void one_result_too_many(const Tactic& t, const A& a, Stream& s) {
  right<SampleOp>(t, a, s);
  a.results.data()[a.results.size()].token = 1;
}
void last_row_is_its_neighbour(const Tactic& t, const A& a, Stream& s) {
  right<SampleOp>(t, a, s);
  if (a.rows > 1) a.results.back() = a.results[a.results.size() - 2];
}
void last_alternative_unwritten(const Tactic& t, const A& a, Stream& s) {
  right<SampleOp>(t, a, s);
  for (int r = 0; r < a.rows; ++r)
    if (a.params[static_cast<size_t>(r)].top_logprobs > 0)
      a.results[static_cast<size_t>(r)].top_logprobs[a.params[static_cast<size_t>(r)].top_logprobs - 1] = 0;
}
void now_and_then_the_second_best(const Tactic& t, const A& a, Stream& s) {
  static int calls = 0;
  right<SampleOp>(t, a, s);
  if (++calls % 2 == 0 && a.results[0].token > 0) --a.results[0].token;
}
void nan_beside_spoils(const Tactic& t, const A& a, Stream& s) {
  right<SampleOp>(t, a, s);
  for (size_t r = 1; r < a.results.size(); ++r)
    if (a.results[r].token == -1) a.results[r - 1].token = -1;
}

constexpr Fault<SampleOp> kFaults[] = {
    {"greedy_tie_to_higher_id", copy<F::kGreedyTieToHigherId>},
    {"order_tie_to_higher_id", copy<F::kOrderTieToHigherId>},
    {"last_token_never", copy<F::kLastTokenNever>},
    {"one_block_of_64_skipped", copy<F::kBlockOf64Skipped>},
    {"padding_not_masked", copy<F::kPaddingNotMasked>},
    {"greedy_without_bias", copy<F::kGreedyWithoutBias>},
    {"nan_gives_token_0", copy<F::kNanGivesZero>},
    {"infinity_accepted", copy<F::kInfinityAccepted>},
    {"logits_in_f16", copy<F::kLogitsF16>},
    {"top_k_one_less", copy<F::kTopKLess>},
    {"top_k_keeps_ties", copy<F::kTopKTiesKept>},
    {"top_p_drops_the_crossing_token", copy<F::kTopPDropsCrossing>},
    {"top_p_of_all_not_of_top_k", copy<F::kTopPOfAll>},
    {"min_p_relative_to_sum", copy<F::kMinPOfSum>},
    {"min_p_ignored", copy<F::kMinPIgnored>},
    {"min_p_before_temperature", copy<F::kMinPBeforeTemperature>},
    {"cuts_before_penalties", copy<F::kCutsBeforePenalties>},
    {"temperature_forgotten", copy<F::kTemperatureOnProbabilities>},
    {"random_number_shifted", copy<F::kRandomShifted>},
    {"random_number_of_neighbour", copy<F::kRandomOfNeighbour>},
    {"drawn_in_order_of_ids", copy<F::kOrderOfIds>},
    {"repetition_divides_negative", copy<F::kPenaltyOfNegativeDivides>},
    {"presence_counts_the_prompt", copy<F::kPresenceCountsPrompt>},
    {"frequency_counts_once", copy<F::kFrequencyOnce>},
    {"repetition_of_output_alone", copy<F::kRepetitionOfOutputOnly>},
    {"logprob_of_adjusted", copy<F::kLogprobOfAdjusted>},
    {"logprob_with_temperature", copy<F::kLogprobWithTemperature>},
    {"logprob_sum_without_last", copy<F::kLogprobSumWithoutLast>},
    {"alternatives_of_adjusted", copy<F::kTopLogprobsOfAdjusted>},
    {"one_alternative_less", copy<F::kTopLogprobsOneLess>},
    {"temperature_02_percent", with<[](SampleRow& r) { r.temperature *= 1.002f; }>},
    {"top_k_one_more", with<[](SampleRow& r) { r.top_k += std::min(r.top_k, 1); }>},
    {"top_p_7_percent_less", with<[](SampleRow& r) { r.top_p *= 0.93f; }>},
    {"presence_left_out", with<[](SampleRow& r) { r.presence = 0; }>},
    {"frequency_left_out", with<[](SampleRow& r) { r.frequency = 0; }>},
    {"repetition_left_out", with<[](SampleRow& r) { r.repetition = 1; }>},
    {"biases_left_out", with<[](SampleRow& r) { r.biases = {}; }>},
    {"random_in_8_bits", with<[](SampleRow& r) { r.random = std::floor(r.random * 256) / 256; }>},
    {"params_of_first_row", params_of_first_row},
    {"logprob_bf16", logprob_bf16},
    {"last_row_skipped", last_row_skipped},
    {"one_result_too_many", one_result_too_many},
    {"last_row_is_its_neighbour", last_row_is_its_neighbour},
    {"last_alternative_unwritten", last_alternative_unwritten},
    {"now_and_then_another_token", now_and_then_the_second_best},
    {"nan_row_spoils_its_neighbour", nan_beside_spoils},
    {"writes_behind_its_workspace", C::writes_behind_its_workspace},
    {"loops_forever", C::loops_forever},
    {"throws", C::throws},
};

}  // namespace

template <>
std::span<const Fault<SampleOp>> faults_of() {
  static const std::vector<Fault<SampleOp>> all = [] {
    std::vector<Fault<SampleOp>> faults(std::begin(kFaults), std::end(kFaults));
    const auto more = sample_shared_faults().subspan(1);
    faults.insert(faults.end(), more.begin(), more.end());
    return faults;
  }();
  return all;
}
template <>
std::span<const Fault<SampleOp>> copies_of() {
  static const std::vector<Fault<SampleOp>> all = {{"copy", copy<F::kNone>}, sample_shared_faults().front()};
  return all;
}

}  // namespace mettle::mutants
