// Faults of gdn. Most are in a copy of the reference, at the place where a kernel would have them.
#include <algorithm>

#include "altered.h"
#include "common_faults.h"
#include "ops/cpu/reference_math.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

using A = GdnArgs;
using C = Common<GdnOp>;
using reference::for_each;
using reference::kRows;
using reference::Rows;

enum class F {
  kNone,
  // convolution
  kConvHistoryShifted,
  kConvTapsReversed,
  kConvWithoutSilu,
  kConvHistoryNotUsed,
  kConvHistoryNotKept,
  kConvHistoryAfterSilu,
  kConvOutBf16,
  kConvHistoryBf16,
  // q and k
  kQNotScaled,
  kKNotNormalised,
  kEpsOutsideTheRoot,
  kMeanForSum,
  kEpsMissing,
  kQKBf16,
  // gates
  kBetaMissing,
  kBetaBf16,
  kAAndBSwapped,
  kDtBiasMissing,
  kSoftplusIsRelu,
  kSoftplusOfExp,
  kALogNotExponentiated,
  kDecayAfter,
  kDecayMissing,
  kDecayBeforeReadOnly,
  kDecayBf16,
  // state
  kStateNotCarried,
  kStateBf16,
  kStateTransposed,
  kReadBeforeWrite,
  kKeyHeadModulo,
  kLastValueHeadSkipped,
  kOneColumnSkipped,
  kStateOfRow64Lost,
  kStateWrittenToIn,
  kFreshSlotNotCleared,
  // output
  kNormEps,
  kNormWithoutWeight,
  kNormPlusOne,
  kNormMissing,
  kGateSigmoid,
  kGateBf16,
  kZOfNextHead,
  kOutBf16BeforeNorm,
  kCoreNotRounded,
};

float bf16(float x) { return bf16_to_float(float_to_bf16(x)); }

struct Space {
  std::vector<float> memory;
  Rows rows;
  Space(int64_t count, int64_t width) : memory(static_cast<size_t>(count * width)), rows{memory.data(), width} {}
};

struct Sequence {
  const A& a;
  const BatchSequence& q;
  F fault;
  Space qkv, z, ba, conv, core;

  Sequence(const A& a, const BatchSequence& q, F fault)
      : a(a),
        q(q),
        fault(fault),
        qkv(q.q_len, a.problem.channels()),
        z(q.q_len, int64_t{a.problem.value_heads} * a.problem.dv),
        ba(q.q_len, 2 * int64_t{a.problem.value_heads}),
        conv(q.q_len, a.problem.channels()),
        core(q.q_len, int64_t{a.problem.value_heads} * a.problem.dv) {}

  float* slot(const TensorView& of, int index) const {
    return of.as<float>() + of.shape.elements() / of.shape[0] * index;
  }
  void bring(const TensorView& slots) const {
    const int64_t n = slots.shape.elements() / slots.shape[0];
    float* to = slot(slots, q.state_out);
    if (q.state_in < 0 || (fault == F::kStateNotCarried && &slots == &a.state)) {
      if (fault != F::kFreshSlotNotCleared) std::fill_n(to, n, 0.f);
    } else if (q.state_in != q.state_out) {
      std::copy_n(slot(slots, q.state_in), n, to);
    }
  }
  void convolve(int64_t channel) const {
    const GdnProblem& p = a.problem;
    float* history = slot(a.conv_state, q.state_out) + channel * (p.conv - 1);
    const float* tap = a.weights->conv.data() + channel * p.conv;
    std::vector<float> past(history, history + p.conv - 1);
    const int n = p.conv - 1;
    if (fault == F::kConvHistoryNotUsed) std::fill(past.begin(), past.end(), 0.f);
    if (fault == F::kConvHistoryShifted) std::rotate(past.begin(), past.begin() + 1, past.end());
    if (fault == F::kConvHistoryBf16) reference::round_if(true, past.data(), n);
    for (int i = 0; i < q.q_len; ++i) {
      const float now = qkv.rows[i][channel];
      float sum = 0;
      for (int j = 0; j < n; ++j)
        sum += tap[fault == F::kConvTapsReversed ? p.conv - 1 - j : j] * past[static_cast<size_t>(j)];
      sum += tap[fault == F::kConvTapsReversed ? 0 : n] * now;
      float out = fault == F::kConvWithoutSilu ? sum : reference::silu(sum);
      if (fault == F::kConvOutBf16) out = bf16(out);
      conv.rows[i][channel] = out;
      for (int j = 0; j + 1 < n; ++j) past[static_cast<size_t>(j)] = past[static_cast<size_t>(j) + 1];
      past[static_cast<size_t>(n) - 1] = fault == F::kConvHistoryAfterSilu ? out : now;
    }
    if (fault == F::kConvHistoryNotKept && q.state_in >= 0) return;
    std::copy(past.begin(), past.end(), history);
  }
  void normalise(int64_t row, int64_t head) const {
    const GdnProblem& p = a.problem;
    float* x = conv.rows[row] + head * p.dk;
    const bool is_q = head < p.key_heads;
    double sum = 0;
    for (int i = 0; i < p.dk; ++i) sum += static_cast<double>(x[i]) * x[i];
    if (fault == F::kMeanForSum) sum /= p.dk;
    double inverse = 1 / std::sqrt(sum + (fault == F::kEpsMissing ? 1e-30 : 1e-6));
    if (fault == F::kEpsOutsideTheRoot) inverse = 1 / (std::sqrt(sum) + 1e-6);
    if (fault == F::kKNotNormalised && !is_q) inverse = 1;
    const double scale = is_q && fault != F::kQNotScaled ? 1 / std::sqrt(static_cast<double>(p.dk)) : 1;
    for (int i = 0; i < p.dk; ++i) {
      x[i] = x[i] * static_cast<float>(inverse) * static_cast<float>(scale);
      if (fault == F::kQKBf16) x[i] = bf16(x[i]);
    }
  }
  void head_of(int head) const {
    const GdnProblem& p = a.problem;
    const GdnWeights& w = *a.weights;
    const auto h = static_cast<size_t>(head);
    const int key_head = fault == F::kKeyHeadModulo ? head % p.key_heads : head / (p.value_heads / p.key_heads);
    float* state = slot(a.state, q.state_out) + int64_t{head} * p.dk * p.dv;
    std::vector<float> read(static_cast<size_t>(p.dv)), out(read);
    for (int row = 0; row < q.q_len; ++row) {
      const float* qh = conv.rows[row] + key_head * p.dk;
      const float* k = qh + int64_t{p.key_heads} * p.dk;
      const float* v = conv.rows[row] + 2LL * p.key_heads * p.dk + int64_t{head} * p.dv;
      float b = ba.rows[row][head], alpha = ba.rows[row][p.value_heads + head];
      if (fault == F::kAAndBSwapped) std::swap(b, alpha);
      float beta = fault == F::kBetaMissing ? 1.f : reference::sigmoid(b);
      if (fault == F::kBetaBf16) beta = bf16(beta);
      const float x = alpha + (fault == F::kDtBiasMissing ? 0.f : w.dt_bias[h]);
      float softplus = x > 20 ? x : std::log1p(std::exp(x));
      if (fault == F::kSoftplusIsRelu) softplus = std::max(x, 0.f);
      if (fault == F::kSoftplusOfExp) softplus = x > 8 ? x : x < -8 ? 0 : std::log1p(std::exp(x));
      const float rate = fault == F::kALogNotExponentiated ? w.a_log[h] : std::exp(w.a_log[h]);
      float decay = std::exp(-rate * softplus);
      if (fault == F::kDecayMissing) decay = 1;
      if (fault == F::kDecayBf16) decay = bf16(decay);
      if (fault == F::kStateOfRow64Lost && row == 64) std::fill_n(state, p.dk * p.dv, 0.f);
      std::fill(read.begin(), read.end(), 0.f);
      std::fill(out.begin(), out.end(), 0.f);
      const float first = fault == F::kDecayAfter ? 1.f : decay, after = fault == F::kDecayAfter ? decay : 1.f;
      for (int i = 0; i < p.dk; ++i)
        for (int j = 0; j < p.dv; ++j) {
          float& s = state[i * p.dv + j];
          if (fault == F::kDecayBeforeReadOnly) {
            read[static_cast<size_t>(j)] += s * decay * k[i];
            continue;
          }
          s *= first;
          read[static_cast<size_t>(j)] += s * k[i];
          if (fault == F::kReadBeforeWrite) out[static_cast<size_t>(j)] += s * qh[i];
        }
      for (int j = 0; j < p.dv; ++j) read[static_cast<size_t>(j)] = beta * (v[j] - read[static_cast<size_t>(j)]);
      const int columns = fault == F::kOneColumnSkipped ? p.dv - 1 : p.dv;
      for (int i = 0; i < p.dk; ++i)
        for (int j = 0; j < p.dv; ++j) {
          float& s = state[i * p.dv + j];
          if (j < columns) s += k[i] * read[static_cast<size_t>(j)];
          s *= after;
          if (fault == F::kStateBf16) s = bf16(s);
          if (fault != F::kReadBeforeWrite) out[static_cast<size_t>(j)] += s * qh[i];
        }
      finish(row, head, out);
    }
    if (fault == F::kStateTransposed && p.dk == p.dv)
      for (int i = 0; i < p.dk; ++i)
        for (int j = 0; j < i; ++j) std::swap(state[i * p.dv + j], state[j * p.dv + i]);
    if (fault == F::kStateWrittenToIn && q.state_in >= 0 && q.state_in != q.state_out)
      std::copy_n(state, p.dk * p.dv, slot(a.state, q.state_in) + int64_t{head} * p.dk * p.dv);
  }
  void finish(int row, int head, std::vector<float>& out) const {
    const GdnProblem& p = a.problem;
    float* to = core.rows[row] + int64_t{head} * p.dv;
    if (fault == F::kLastValueHeadSkipped && head == p.value_heads - 1) return;
    if (fault == F::kOutBf16BeforeNorm) reference::round_if(true, out.data(), p.dv);
    const int z_head = fault == F::kZOfNextHead ? (head + 1) % p.value_heads : head;
    const float* zs = z.rows[row] + int64_t{z_head} * p.dv;
    const float scale =
        fault == F::kNormMissing ? 1.f : reference::inverse_rms(out.data(), p.dv, fault == F::kNormEps ? 1e-5f : p.eps);
    for (int j = 0; j < p.dv; ++j) {
      float weight = a.weights->norm[static_cast<size_t>(j)];
      if (fault == F::kNormWithoutWeight) weight = 1;
      if (fault == F::kNormPlusOne) weight += 1;
      float gate = fault == F::kGateSigmoid ? reference::sigmoid(zs[j]) : reference::silu(zs[j]);
      if (fault == F::kGateBf16) gate = bf16(gate);
      to[j] = out[static_cast<size_t>(j)] * scale * weight * gate;
    }
    reference::round_if(p.activation == Activation::kBf16 && fault != F::kCoreNotRounded, to, p.dv);
  }
};

template <F fault>
void copy(const Tactic&, const A& a, Stream& stream) {
  const GdnProblem& p = a.problem;
  for (const BatchSequence& q : a.batch->sequences) {
    Sequence s(a, q, fault);
    s.bring(a.conv_state);
    s.bring(a.state);
    const auto pieces = [&](const auto& work) {
      for (int first = 0; first < q.q_len; first += kRows) work(first, std::min(kRows, q.q_len - first));
    };
    const auto from = [](const Rows& rows, int first) { return Rows{rows[first], rows.width}; };
    pieces([&](int first, int rows) {
      Space x(rows, p.hidden);
      reference::widen(a.x, q.first_row + first, rows, x.rows);
      product(a.weights->qkv, x.rows, from(s.qkv.rows, first), rows, stream);
      product(a.weights->z, x.rows, from(s.z.rows, first), rows, stream);
      product(a.weights->ba, x.rows, from(s.ba.rows, first), rows, stream);
    });
    for_each(stream, p.channels(), [&](int64_t channel) { s.convolve(channel); });
    for_each(stream, int64_t{q.q_len} * 2 * p.key_heads,
             [&](int64_t item) { s.normalise(item / (2 * p.key_heads), item % (2 * p.key_heads)); });
    for_each(stream, p.value_heads, [&](int64_t head) { s.head_of(static_cast<int>(head)); });
    pieces([&](int first, int rows) {
      product(a.weights->out, from(s.core.rows, first), Rows{out_of(a).row(q.first_row + first), p.hidden}, rows,
              stream);
    });
  }
}

// ---- outside of the kernel
int64_t slot_floats(const A& a) { return a.state.shape.elements() / a.state.shape[0]; }
void conv_history_swapped(const Tactic& t, const A& a, Stream& s) {
  right<GdnOp>(t, a, s);
  const int64_t n = a.conv_state.shape.elements() / a.conv_state.shape[0];
  float* last = a.conv_state.as<float>() + a.batch->sequences.back().state_out * n;
  std::swap(last[0], last[1]);
}
void one_state_element_tenth_percent(const Tactic& t, const A& a, Stream& s) {
  right<GdnOp>(t, a, s);
  a.state.as<float>()[(a.batch->sequences[0].state_out + 1) * slot_floats(a) - 1] *= 1.001f;
}
void foreign_slot_written(const Tactic& t, const A& a, Stream& s) {
  right<GdnOp>(t, a, s);
  a.state.as<float>()[3] = 0;  // slot 0 belongs to nobody
}
void state_one_past_the_end(const Tactic& t, const A& a, Stream& s) {
  right<GdnOp>(t, a, s);
  a.state.as<float>()[a.state.shape.elements()] = 0;
}
void slots_of_two_sequences_swapped(const Tactic& t, const A& a, Stream& s) {
  right<GdnOp>(t, a, s);
  if (a.batch->sequences.size() < 2) return;
  float* x = a.state.as<float>() + a.batch->sequences[0].state_out * slot_floats(a);
  std::swap_ranges(x, x + slot_floats(a), a.state.as<float>() + a.batch->sequences[1].state_out * slot_floats(a));
}
void state_at_second_call_stale(const Tactic& t, const A& a, Stream& s) {
  static int calls = 0;
  const int64_t n = slot_floats(a);
  const BatchSequence& q = a.batch->sequences.back();
  std::vector<float> before;
  if (++calls % 2 == 0 && q.state_in >= 0)
    before.assign(a.state.as<float>() + q.state_in * n, a.state.as<float>() + (q.state_in + 1) * n);
  right<GdnOp>(t, a, s);
  std::copy(before.begin(), before.end(), a.state.as<float>() + q.state_out * n);
}

constexpr Fault<GdnOp> kFaults[] = {
    {"conv_history_shifted_by_one", copy<F::kConvHistoryShifted>},
    {"conv_taps_reversed", copy<F::kConvTapsReversed>},
    {"conv_without_silu", copy<F::kConvWithoutSilu>},
    {"conv_history_not_used", copy<F::kConvHistoryNotUsed>},
    {"conv_history_not_kept", copy<F::kConvHistoryNotKept>},
    {"conv_history_after_silu", copy<F::kConvHistoryAfterSilu>},
    {"conv_out_bf16", copy<F::kConvOutBf16>},
    {"conv_history_bf16", copy<F::kConvHistoryBf16>},
    {"q_not_scaled", copy<F::kQNotScaled>},
    {"k_not_normalised", copy<F::kKNotNormalised>},
    {"l2_eps_outside_the_root", copy<F::kEpsOutsideTheRoot>},
    {"l2_mean_for_sum", copy<F::kMeanForSum>},
    {"l2_eps_missing", copy<F::kEpsMissing>},
    {"q_and_k_bf16_after_l2", copy<F::kQKBf16>},
    {"beta_missing", copy<F::kBetaMissing>},
    {"beta_bf16", copy<F::kBetaBf16>},
    {"a_and_b_swapped", copy<F::kAAndBSwapped>},
    {"dt_bias_missing", copy<F::kDtBiasMissing>},
    {"softplus_is_relu", copy<F::kSoftplusIsRelu>},
    {"softplus_cut_at_8", copy<F::kSoftplusOfExp>},
    {"a_log_not_exponentiated", copy<F::kALogNotExponentiated>},
    {"decay_after_write", copy<F::kDecayAfter>},
    {"decay_missing", copy<F::kDecayMissing>},
    {"decay_of_read_alone", copy<F::kDecayBeforeReadOnly>},
    {"decay_bf16", copy<F::kDecayBf16>},
    {"state_not_carried", copy<F::kStateNotCarried>},
    {"state_bf16", copy<F::kStateBf16>},
    {"state_transposed", copy<F::kStateTransposed>},
    {"output_before_write", copy<F::kReadBeforeWrite>},
    {"key_head_by_modulo", copy<F::kKeyHeadModulo>},
    {"last_value_head_skipped", copy<F::kLastValueHeadSkipped>},
    {"last_state_column_not_written", copy<F::kOneColumnSkipped>},
    {"state_lost_at_row_64", copy<F::kStateOfRow64Lost>},
    {"state_written_to_where_it_came_from", copy<F::kStateWrittenToIn>},
    {"fresh_slot_not_cleared", copy<F::kFreshSlotNotCleared>},
    {"norm_eps_ten_times", copy<F::kNormEps>},
    {"norm_without_weight", copy<F::kNormWithoutWeight>},
    {"norm_weight_plus_one", copy<F::kNormPlusOne>},
    {"norm_missing", copy<F::kNormMissing>},
    {"gate_by_sigmoid", copy<F::kGateSigmoid>},
    {"gate_bf16", copy<F::kGateBf16>},
    {"z_of_next_head", copy<F::kZOfNextHead>},
    {"out_bf16_before_norm", copy<F::kOutBf16BeforeNorm>},
    {"core_not_rounded", copy<F::kCoreNotRounded>},
    {"conv_history_swapped", conv_history_swapped},
    {"one_state_element_a_permille_off", one_state_element_tenth_percent},
    {"foreign_slot_written", foreign_slot_written},
    {"state_one_past_the_end", state_one_past_the_end},
    {"slots_of_two_sequences_swapped", slots_of_two_sequences_swapped},
    {"state_stale_at_second_call", state_at_second_call_stale},
    {"last_row_skipped", C::last_row_skipped},
    {"uninitialised_scratch", C::uninitialised_scratch},
    {"neighbour_leaks", C::neighbour_leaks},
    {"wrong_from_64_rows_on", C::wrong_from_64_rows_on},
    {"column_one_percent", C::column_one_percent},
    {"right_at_first_calls", C::right_at_first_calls},
    {"data_race", C::data_race},
    {"aborts", C::aborts},
    {"allocates_without_end", C::allocates_without_end},
};

}  // namespace

template <>
std::span<const Fault<GdnOp>> faults_of() {
  static const std::vector<Fault<GdnOp>> all = [] {
    std::vector<Fault<GdnOp>> faults(std::begin(kFaults), std::end(kFaults));
    const auto more = gdn_chunked_faults().subspan(1);
    faults.insert(faults.end(), more.begin(), more.end());
    return faults;
  }();
  return all;
}
template <>
std::span<const Fault<GdnOp>> copies_of() {
  static const std::vector<Fault<GdnOp>> all = {{"copy", copy<F::kNone>}, gdn_chunked_faults().front()};
  return all;
}

}  // namespace mettle::mutants
