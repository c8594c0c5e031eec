// Faults of moe. Most are in a copy of the reference, at the place where a kernel would have them.
#include "altered.h"
#include "common_faults.h"
#include "ops/cpu/reference_math.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

using A = MoeArgs;
using C = Common<MoeOp>;
using reference::for_each;
using reference::kRows;
using reference::Rows;

enum class F {
  kNone,
  // routing
  kOneLess,
  kTieToHigherId,
  kSecondBest,
  kSlotsUnsorted,
  kLastExpertNever,
  kIdOutOfRange,
  kSameExpertTwice,
  kRouterBf16,
  kRouterLastColumns,
  kBiasInWeights,
  kWeightsSigmoid,
  kNotRenormalised,
  kNotRenormalisedNearOne,
  kMaxNotSubtracted,
  kWeightsBf16,
  kWeightsOfOtherSlot,
  kGivenIgnored,
  kPaddingIsAnExpert,
  kPaddingEndsTheRow,
  kPaddingWeightRead,
  // experts
  kGelu,
  kGateUpSwapped,
  kExpFlushed,
  kHNotRounded,
  kHTruncated,
  kGateUpBf16,
  kExpertOutBf16,
  kDownOfNextExpert,
  kScaleOfFirstExpert,
  kDownScaleTwice,
  kUpNibblesSwapped,
  kDownScaleOfNeighbourRow,
  kLastWidthBlockSkipped,
  kLastExpertSkipped,
  kOneExpertColumn,
  kOneExpertOnePercent,
  kRowsBeyond16OfAnExpert,
  kTailRowOfAnExpert,
  // combine and shared expert
  kCombineBf16,
  kSharedMissing,
  kSharedTwice,
  kSharedGateMissing,
  kSharedGateBf16,
  kSharedGateOfNeighbour,
  kSharedGateUpSwapped,
  kSharedGelu,
  kSharedScaledByWeights,
};

float bf16(float x) { return bf16_to_float(float_to_bf16(x)); }

float gelu(float x) { return 0.5f * x * (1 + std::erf(x * 0.70710678f)); }

void select(const MoeProblem& p, float* score, int32_t* ids, float* weights, F fault) {
  if (fault == F::kRouterBf16)
    for (int e = 0; e < p.experts; ++e) score[e] = bf16(score[e]);
  const int candidates = fault == F::kLastExpertNever ? p.experts - 1 : p.experts;
  for (int k = 0; k < p.top_k; ++k) {
    int32_t best = -1;
    for (int32_t e = 0; e < candidates; ++e) {
      if (std::find(ids, ids + k, e) != ids + k) continue;
      if (best < 0 || score[e] > score[best] || (fault == F::kTieToHigherId && score[e] == score[best])) best = e;
    }
    ids[k] = best;
  }
  if (fault == F::kSecondBest) {
    int32_t e = 0;
    while (std::find(ids, ids + p.top_k, e) != ids + p.top_k) ++e;
    ids[p.top_k - 1] = e;
  }
  if (fault == F::kSameExpertTwice) ids[p.top_k - 1] = ids[0];
  if (fault == F::kSlotsUnsorted) std::swap(ids[0], ids[p.top_k - 1]);
  const auto exponential = [&](int e) {
    const double bias = fault == F::kBiasInWeights ? 0.02 * (e % 7) : 0;
    if (fault == F::kWeightsSigmoid) return 1 / (1 + std::exp(-static_cast<double>(score[e])));
    if (fault == F::kMaxNotSubtracted) return static_cast<double>(std::exp(score[e]));
    return std::exp(static_cast<double>(score[e]) - static_cast<double>(score[ids[0]]) + bias);
  };
  double sum = 0, all = 0;
  const int summed = fault == F::kOneLess ? p.top_k - 1 : p.top_k;
  for (int k = 0; k < summed; ++k) sum += exponential(ids[k]);
  for (int e = 0; e < p.experts; ++e) all += exponential(e);
  if (!p.renormalise || fault == F::kNotRenormalised) sum = all;
  if (fault == F::kNotRenormalisedNearOne && sum > 0.98 * all) sum = all;
  for (int k = 0; k < p.top_k; ++k) weights[k] = k < summed ? static_cast<float>(exponential(ids[k]) / sum) : 0.f;
  if (fault == F::kWeightsBf16)
    for (int k = 0; k < p.top_k; ++k) weights[k] = bf16(weights[k]);
  if (fault == F::kIdOutOfRange) ids[0] = p.experts;
}

void swiglu(const MoeProblem& p, float* gate_up, int64_t width, float* h, F fault, bool shared) {
  if (fault == F::kGateUpBf16 && !shared) reference::round_if(true, gate_up, 2 * width);
  const bool swapped = fault == (shared ? F::kSharedGateUpSwapped : F::kGateUpSwapped);
  const float *gate = gate_up + (swapped ? width : 0), *up = gate_up + (swapped ? 0 : width);
  for (int64_t i = 0; i < width; ++i) {
    float act = fault == (shared ? F::kSharedGelu : F::kGelu) ? gelu(gate[i]) : reference::silu(gate[i]);
    if (fault == F::kExpFlushed && gate[i] < -20) act = 0;
    h[i] = act * up[i];
    if (shared || p.activation != Activation::kBf16) continue;
    if (fault == F::kHTruncated) h[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(h[i]) & 0xFFFF0000u);
    if (fault != F::kHNotRounded) h[i] = bf16(h[i]);
  }
  if (shared) reference::round_if(p.activation == Activation::kBf16, h, width);
}

struct Space {
  std::vector<float> memory;
  Rows rows;
  Space(int64_t count, int64_t width) : memory(static_cast<size_t>(count * width)), rows{memory.data(), width} {}
};

void experts_of(const A& a, int first, int rows, const Rows& x, const Rows& y, F fault, Stream& stream) {
  const MoeProblem& p = a.problem;
  const int32_t* ids = a.selection.ids + static_cast<int64_t>(first) * p.top_k;
  std::vector<std::vector<int32_t>> pairs(static_cast<size_t>(p.experts));
  for (int i = 0; i < rows * p.top_k; ++i) {
    const int32_t id = ids[i] < 0 && fault == F::kPaddingIsAnExpert ? 0 : ids[i];
    if (id >= 0 && id < p.experts) pairs[static_cast<size_t>(id)].push_back(i);
  }
  std::vector<int> used;
  for (int e = 0; e < p.experts; ++e)
    if (!pairs[static_cast<size_t>(e)].empty()) used.push_back(e);
  for_each(stream, static_cast<int64_t>(used.size()), [&](int64_t item) {
    const int e = used[static_cast<size_t>(item)];
    const auto& own = pairs[static_cast<size_t>(e)];
    const auto count = static_cast<int64_t>(own.size());
    const PackedExpert& expert = a.weights->experts[static_cast<size_t>(e)];
    const Altered gate_up(expert.gate_up,
                          fault == F::kUpNibblesSwapped && e % 2 == 1 ? Misread::kNibblesSwapped : Misread::kNone);
    const PackedExpert& of =
        a.weights->experts[static_cast<size_t>(fault == F::kDownOfNextExpert ? (e + 1) % p.experts : e)];
    PackedMatrix down = of.down;
    if (fault == F::kScaleOfFirstExpert) down.row_scale = a.weights->experts.front().down.row_scale;
    const Altered read(down, fault == F::kDownScaleTwice            ? Misread::kScale2Twice
                             : fault == F::kDownScaleOfNeighbourRow ? Misread::kScaleOfNeighbourRow
                                                                    : Misread::kNone);
    Space g(count, 2 * int64_t{p.width}), h(count, p.width);
    std::vector<const float*> from;
    std::vector<float*> to;
    for (int64_t i = 0; i < count; ++i)
      from.push_back(x[own[static_cast<size_t>(i)] / p.top_k]), to.push_back(g.rows[i]);
    for (int64_t tile = 0; tile < expert.gate_up.tiles; ++tile) reference::product_tile(gate_up.view(), tile, from, to);
    from.clear(), to.clear();
    for (int64_t i = 0; i < count; ++i) {
      swiglu(p, g.rows[i], p.width, h.rows[i], fault, false);
      if (fault == F::kLastWidthBlockSkipped) std::fill_n(h.rows[i] + p.width - 16, 16, 0.f);
      from.push_back(h.rows[i]), to.push_back(y[own[static_cast<size_t>(i)]]);
    }
    for (int64_t tile = 0; tile < down.tiles; ++tile) reference::product_tile(read.view(), tile, from, to);
    const int odd_one = p.experts * 3 / 5 + 1;
    for (int64_t i = 0; i < count; ++i) {
      float* out = to[static_cast<size_t>(i)];
      if (fault == F::kLastExpertSkipped && e == p.experts - 1) std::fill_n(out, p.hidden, 0.f);
      if (fault == F::kOneExpertColumn && e == odd_one) out[50] *= 1.005f;
      if (fault == F::kOneExpertOnePercent && e == odd_one)
        for (int c = 0; c < p.hidden; ++c) out[c] *= 1.01f;
      if (fault == F::kExpertOutBf16) reference::round_if(true, out, p.hidden);
      if (fault == F::kRowsBeyond16OfAnExpert && i >= 16) std::copy_n(to[static_cast<size_t>(i % 16)], p.hidden, out);
      if (fault == F::kTailRowOfAnExpert && i + 1 == count && count % 4 == 3)
        std::copy_n(to[static_cast<size_t>(i - 1)], p.hidden, out);
    }
  });
}

void run_rows(const A& a, int first, int rows, F fault, Stream& stream) {
  const MoeProblem& p = a.problem;
  const MoeWeights& w = *a.weights;
  int32_t* ids = a.selection.ids + static_cast<int64_t>(first) * p.top_k;
  float* weights = a.selection.weights + static_cast<int64_t>(first) * p.top_k;
  Space x(rows, p.hidden), logits(rows, p.experts), y(int64_t{rows} * p.top_k, p.hidden);
  reference::widen(a.x, first, rows, x.rows);
  if (!a.selection.given || fault == F::kGivenIgnored) {
    Space routed(rows, p.hidden);
    routed.memory = x.memory;
    routed.rows.data = routed.memory.data();
    if (fault == F::kRouterLastColumns)
      for (int i = 0; i < rows; ++i) std::fill_n(routed.rows[i] + p.hidden - 2, 2, 0.f);
    product(w.router, routed.rows, logits.rows, rows, stream);
    for (int i = 0; i < rows; ++i) select(p, logits.rows[i], ids + i * p.top_k, weights + i * p.top_k, fault);
  }
  experts_of(a, first, rows, x.rows, y.rows, fault, stream);
  Space shared(rows, p.hidden), gate(rows, 1);
  if (p.shared_width > 0) {
    Space g(rows, 2 * int64_t{p.shared_width}), h(rows, p.shared_width);
    product(w.shared.gate_up, x.rows, g.rows, rows, stream);
    for (int i = 0; i < rows; ++i) swiglu(p, g.rows[i], p.shared_width, h.rows[i], fault, true);
    product(w.shared.down, h.rows, shared.rows, rows, stream);
    if (p.shared_gate) product(w.shared_gate, x.rows, gate.rows, rows, stream);
  }
  for (int i = 0; i < rows; ++i) {
    float* out = out_of(a).row(first + i);
    std::fill_n(out, p.hidden, 0.f);
    for (int k = 0; k < p.top_k; ++k) {
      const bool padding = ids[i * p.top_k + k] < 0;
      if (padding && fault == F::kPaddingEndsTheRow) break;
      if (padding && fault != F::kPaddingIsAnExpert && fault != F::kPaddingWeightRead) continue;
      const int slot = fault == F::kWeightsOfOtherSlot ? (k + 1) % p.top_k : k;
      for (int c = 0; c < p.hidden; ++c) {
        out[c] += weights[i * p.top_k + slot] * y.rows[int64_t{i} * p.top_k + k][c];
        if (fault == F::kCombineBf16) out[c] = bf16(out[c]);
      }
    }
    if (p.shared_width == 0 || fault == F::kSharedMissing) continue;
    float logit = *gate.rows[fault == F::kSharedGateOfNeighbour && i > 0 ? i - 1 : i];
    if (fault == F::kSharedGateBf16) logit = bf16(logit);
    float scale = p.shared_gate && fault != F::kSharedGateMissing ? reference::sigmoid(logit) : 1.f;
    if (fault == F::kSharedTwice) scale *= 2;
    if (fault == F::kSharedScaledByWeights) scale *= weights[i * p.top_k];
    for (int c = 0; c < p.hidden; ++c) out[c] += scale * shared.rows[i][c];
  }
}

template <F fault>
void copy(const Tactic&, const A& a, Stream& stream) {
  for (int first = 0; first < a.rows; first += kRows)
    run_rows(a, first, std::min(kRows, a.rows - first), fault, stream);
}

constexpr Fault<MoeOp> kFaults[] = {
    {"top_k_one_less", copy<F::kOneLess>},
    {"tie_to_higher_id", copy<F::kTieToHigherId>},
    {"last_slot_not_the_best", copy<F::kSecondBest>},
    {"slots_not_in_order", copy<F::kSlotsUnsorted>},
    {"last_expert_never_chosen", copy<F::kLastExpertNever>},
    {"id_out_of_range", copy<F::kIdOutOfRange>},
    {"same_expert_twice", copy<F::kSameExpertTwice>},
    {"router_scores_bf16", copy<F::kRouterBf16>},
    {"router_last_columns_skipped", copy<F::kRouterLastColumns>},
    {"router_bias_in_weights", copy<F::kBiasInWeights>},
    {"weights_by_sigmoid", copy<F::kWeightsSigmoid>},
    {"weights_not_renormalised", copy<F::kNotRenormalised>},
    {"weights_not_renormalised_near_one", copy<F::kNotRenormalisedNearOne>},
    {"softmax_without_maximum", copy<F::kMaxNotSubtracted>},
    {"weights_bf16", copy<F::kWeightsBf16>},
    {"weights_of_other_slot", copy<F::kWeightsOfOtherSlot>},
    {"given_selection_ignored", copy<F::kGivenIgnored>},
    {"padding_is_an_expert", copy<F::kPaddingIsAnExpert>},
    {"padding_ends_the_row", copy<F::kPaddingEndsTheRow>},
    {"padding_weight_read", copy<F::kPaddingWeightRead>},
    {"gelu_for_silu", copy<F::kGelu>},
    {"gate_and_up_swapped", copy<F::kGateUpSwapped>},
    {"exp_flushed_at_minus_20", copy<F::kExpFlushed>},
    {"h_not_rounded", copy<F::kHNotRounded>},
    {"h_truncated", copy<F::kHTruncated>},
    {"gate_up_bf16", copy<F::kGateUpBf16>},
    {"expert_out_bf16", copy<F::kExpertOutBf16>},
    {"down_of_next_expert", copy<F::kDownOfNextExpert>},
    {"scale_2_of_first_expert", copy<F::kScaleOfFirstExpert>},
    {"down_scale_2_twice", copy<F::kDownScaleTwice>},
    {"nibbles_swapped_in_odd_experts", copy<F::kUpNibblesSwapped>},
    {"down_scale_of_neighbour_row", copy<F::kDownScaleOfNeighbourRow>},
    {"last_block_of_width_skipped", copy<F::kLastWidthBlockSkipped>},
    {"last_expert_skipped", copy<F::kLastExpertSkipped>},
    {"one_column_of_one_expert", copy<F::kOneExpertColumn>},
    {"one_expert_one_percent", copy<F::kOneExpertOnePercent>},
    {"rows_of_an_expert_beyond_16", copy<F::kRowsBeyond16OfAnExpert>},
    {"tail_row_of_an_expert", copy<F::kTailRowOfAnExpert>},
    {"combine_in_bf16", copy<F::kCombineBf16>},
    {"shared_expert_missing", copy<F::kSharedMissing>},
    {"shared_expert_added_twice", copy<F::kSharedTwice>},
    {"shared_gate_missing", copy<F::kSharedGateMissing>},
    {"shared_gate_bf16", copy<F::kSharedGateBf16>},
    {"shared_gate_of_neighbour_row", copy<F::kSharedGateOfNeighbour>},
    {"shared_gate_and_up_swapped", copy<F::kSharedGateUpSwapped>},
    {"shared_gelu", copy<F::kSharedGelu>},
    {"shared_scaled_by_a_weight", copy<F::kSharedScaledByWeights>},
    {"last_row_skipped", C::last_row_skipped},
    {"last_column_skipped", C::last_column_skipped},
    {"stale_output", C::stale_output},
    {"uninitialised_scratch", C::uninitialised_scratch},
    {"adds_to_what_is_there", C::adds_to_what_is_there},
    {"right_only_when_aligned", C::right_only_when_aligned},
    {"neighbour_leaks", C::neighbour_leaks},
    {"odd_rows_wrong", C::odd_rows_wrong},
    {"wrong_from_64_rows_on", C::wrong_from_64_rows_on},
    {"right_for_multiples_of_8_rows", C::right_for_multiples_of_8_rows},
    {"tiny_flushed", C::tiny_flushed},
    {"right_at_first_calls", C::right_at_first_calls},
    {"data_race", C::data_race},
    {"aborts", C::aborts},
    {"partial_report", C::partial_report},
};
constexpr Fault<MoeOp> kCopies[] = {{"copy", copy<F::kNone>}};

}  // namespace

template <>
std::span<const Fault<MoeOp>> faults_of() {
  return kFaults;
}
template <>
std::span<const Fault<MoeOp>> copies_of() {
  return kCopies;
}

}  // namespace mettle::mutants
