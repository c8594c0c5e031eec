// Faults of attention. Most are in a copy of the reference, at the place where a kernel would have them.
#include <algorithm>

#include "altered.h"
#include "common_faults.h"
#include "ops/cpu/reference_math.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

using A = AttentionArgs;
using C = Common<AttentionOp>;
using reference::for_each;
using reference::kRows;
using reference::Rows;

enum class F {
  kNone,
  // norm and rotation
  kNormWithoutOne,
  kQNormForK,
  kNormMissing,
  kNormEps,
  kNormBf16,
  kNormOverAllHeads,
  kRopeAdjacentPairs,
  kRopeHalfWidth,
  kRopeWholeHead,
  kRopeOtherSign,
  kRopeMissing,
  kRopeKOnly,
  kRopeTableBf16,
  kRopeFrequencies,
  kPosition16Bits,
  kPositionF16,
  kPositionOffByOne,
  kRopeBeforeNorm,
  // cache
  kKBeforeRope,
  kKvHeadsSwapped,
  kWrongBlock,
  kVOfPositionBefore,
  // scores and softmax
  kQNotScaled,
  kScaleOfHalfHead,
  kScaleOff,
  kMaskSeesNext,
  kMaskMissesSelf,
  kMaskPerChunk,
  kLastPartialBlock,
  kFirstKeyMissing,
  kKeysBeyond1024,
  kWindow,
  kHeadModulo,
  kMaxNotSubtracted,
  kRescaleMissing,
  kScoresF16,
  kPBf16,
  kPTruncated,
  kDenominatorWithoutLast,
  kOrdinaryExpOfTwo,
  // gate and output
  kGateMissing,
  kGateSilu,
  kGateBf16,
  kGateOfNextHead,
  kGateLayout,
  kOutNotRounded,
  kOutBf16BeforeGate,
  kOutTruncated,
  kLastHeadSkipped,
  kOneHeadTenthPercent,
  // an E4M3 cache
  kCacheKScaleForgotten,
  kCacheVScaleForgotten,
  kCacheKScaleTwice,
  kCacheVScaleTwice,
  kCacheScalesSwapped,
  kCacheStoredUnscaled,
  kCacheReadAsE5M2,
  kCacheOverflowsToNan,
  kCacheTruncates,
  kCacheFlushesSubnormals,
};

float bf16(float x) { return bf16_to_float(float_to_bf16(x)); }
// Through memory: GCC 12 dropped the cut of a probability that was made conditionally.
float cut_to_bf16(float x) {
  volatile uint32_t bits = std::bit_cast<uint32_t>(x);
  bits = bits & 0xFFFF0000u;
  return std::bit_cast<float>(uint32_t{bits});
}
float f16(float x) {  // ten bits of fraction, range ignored
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000u) & 0xFFFFE000u);
}

struct Core {
  const A& a;
  const AttentionProblem& p;
  F fault;

  void norm(const FloatArray& weight, float* head, bool is_k) const {
    if (!p.qk_norm || fault == F::kNormMissing) return;
    const FloatArray& w = fault == F::kQNormForK && is_k ? a.weights->q_norm : weight;
    const float scale = reference::inverse_rms(head, p.head_dim, fault == F::kNormEps ? 1e-5f : p.eps);
    for (int i = 0; i < p.head_dim; ++i) {
      const float one = p.norm_plus_one && fault != F::kNormWithoutOne ? 1.f : 0.f;
      head[i] = head[i] * scale * (one + w[static_cast<size_t>(i)]);
      if (fault == F::kNormBf16 && !is_k) head[i] = bf16(head[i]);
    }
  }
  void rotate(int64_t position, float* head, bool is_k) const {
    if (fault == F::kRopeMissing || (fault == F::kRopeKOnly && !is_k)) return;
    int half = p.rotary_dim / 2;
    if (fault == F::kRopeHalfWidth) half /= 2;
    if (fault == F::kRopeWholeHead) half = p.head_dim / 2;
    for (int i = 0; i < half; ++i) {
      const auto table = static_cast<size_t>(i % (p.rotary_dim / 2));
      float at = static_cast<float>(position);
      if (fault == F::kPosition16Bits) at = static_cast<float>(position & 0xFFFF);
      if (fault == F::kPositionF16) at = f16(at);
      if (fault == F::kPositionOffByOne && !is_k) at += 1;
      const float angle = at * a.weights->inv_freq[table] * (fault == F::kRopeFrequencies ? 1.00001f : 1.f);
      auto cosine = static_cast<float>(std::cos(static_cast<double>(angle)));
      auto sine = static_cast<float>(std::sin(static_cast<double>(angle)));
      if (fault == F::kRopeTableBf16) cosine = bf16(cosine), sine = bf16(sine);
      if (fault == F::kRopeOtherSign) sine = -sine;
      const bool adjacent = fault == F::kRopeAdjacentPairs;
      float &x = head[adjacent ? 2 * i : i], &y = head[adjacent ? 2 * i + 1 : i + half];
      const float first = x, second = y;
      x = first * cosine - second * sine;
      y = second * cosine + first * sine;
    }
  }
  int64_t cache_at(const BatchSequence& s, int64_t position, int kv_head) const {
    int64_t index = position / p.block_size;
    if (fault == F::kWrongBlock && index == 1 && s.ctx_len >= 2 * p.block_size) index = 0;
    return ((int64_t{s.block_table[index]} * p.block_size + position % p.block_size) * p.kv_heads + kv_head) *
           p.head_dim;
  }
  uint8_t code_of(float x) const {
    uint8_t code = float_to_e4m3(x);
    if (fault == F::kCacheOverflowsToNan && std::fabs(x) >= 464) code = 0x7F;
    if (fault == F::kCacheTruncates && std::fabs(e4m3_to_float(code)) > std::fabs(x)) --code;
    if (fault == F::kCacheFlushesSubnormals && (code & 0x7F) < 8) code &= 0x80;
    return code;
  }
  // The scale of k or v, as the fault has it.
  float scale_of(bool is_v) const {
    const AttentionWeights& w = *a.weights;
    return is_v != (fault == F::kCacheScalesSwapped) ? w.v_scale : w.k_scale;
  }
  void store(const TensorView& cache, int64_t at, const float* from, int count, bool is_v) const {
    for (int i = 0; i < count; ++i)
      if (cache.dtype == DType::kF32)
        cache.as<float>()[at + i] = from[i];
      else if (cache.dtype == DType::kE4M3)
        cache.as<uint8_t>()[at + i] = code_of(fault == F::kCacheStoredUnscaled ? from[i] : from[i] / scale_of(is_v));
      else
        cache.as<uint16_t>()[at + i] = float_to_bf16(from[i]);
  }
  float load(const TensorView& cache, int64_t at) const {
    if (cache.dtype == DType::kF32) return cache.as<float>()[at];
    if (cache.dtype != DType::kE4M3) return bf16_to_float(cache.as<uint16_t>()[at]);
    const uint8_t code = cache.as<uint8_t>()[at];
    if (fault == F::kCacheReadAsE5M2)  // the upper half of an F16
      return f16_to_float(static_cast<uint16_t>(uint32_t{code} << 8));
    return e4m3_to_float(code);
  }

  void attend(const BatchSequence& s, int64_t position, int head, const float* q, float* out) const {
    const int group = p.heads / p.kv_heads;
    int kv_head = fault == F::kHeadModulo ? head % p.kv_heads : head / group;
    if (fault == F::kKvHeadsSwapped) kv_head = p.kv_heads - 1 - kv_head;
    auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim)));
    if (fault == F::kQNotScaled) scale = 1;
    if (fault == F::kScaleOfHalfHead) scale *= std::sqrt(2.f);
    if (fault == F::kScaleOff) scale *= 1.0005f;
    if (fault != F::kCacheKScaleForgotten) scale *= scale_of(false);
    if (fault == F::kCacheKScaleTwice) scale *= scale_of(false);
    int64_t first = 0, keys = position + 1;
    // A key that was never written is NaN: the mask looks ahead only inside the sequence.
    if (fault == F::kMaskSeesNext) keys = std::min<int64_t>(keys + 1, s.ctx_len + s.q_len);
    if (fault == F::kMaskMissesSelf && keys > 1) --keys;
    if (fault == F::kMaskPerChunk) keys = s.ctx_len + s.q_len;
    if (fault == F::kLastPartialBlock && keys > p.block_size) keys -= keys % p.block_size;
    if (fault == F::kFirstKeyMissing && keys > 1) first = 1;
    if (fault == F::kKeysBeyond1024) keys = std::min<int64_t>(keys, 1024);
    if (fault == F::kWindow) first = std::max<int64_t>(0, keys - 256);
    std::vector<float> p_of(static_cast<size_t>(keys - first));
    float top = -INFINITY;
    for (int64_t j = first; j < keys; ++j) {
      const int64_t at = cache_at(s, j, kv_head);
      double sum = 0;
      for (int d = 0; d < p.head_dim; ++d) sum += static_cast<double>(q[d]) * load(a.k_cache, at + d);
      float score = static_cast<float>(sum) * scale;
      if (fault == F::kScoresF16) score = f16(score);
      p_of[static_cast<size_t>(j - first)] = score;
      top = std::max(top, score);
    }
    if (fault == F::kMaxNotSubtracted) top = 0;
    float denominator = 0;
    std::fill_n(out, p.head_dim, 0.f);
    for (int64_t j = first; j < keys; ++j) {
      float e = std::exp(p_of[static_cast<size_t>(j - first)] - top);
      if (fault == F::kOrdinaryExpOfTwo) e = std::exp2((p_of[static_cast<size_t>(j - first)] - top) * 1.4426f);
      // As if the running maximum of blocks of 128 had moved without the sums being scaled.
      if (fault == F::kRescaleMissing && j / 128 < (keys - 1) / 128) {
        float of_block = -INFINITY;
        for (int64_t i = j / 128 * 128; i < j / 128 * 128 + 128; ++i)
          of_block = std::max(of_block, p_of[static_cast<size_t>(i)]);
        e = std::exp(p_of[static_cast<size_t>(j - first)] - of_block);
      }
      if (fault != F::kDenominatorWithoutLast || j + 1 < keys || keys == 1) denominator += e;
      if (fault == F::kPBf16) e = bf16(e);
      if (fault == F::kPTruncated) e = cut_to_bf16(e);
      const int64_t at = cache_at(s, fault == F::kVOfPositionBefore && j > 0 ? j - 1 : j, kv_head);
      for (int d = 0; d < p.head_dim; ++d) out[d] += e * load(a.v_cache, at + d);
    }
    for (int d = 0; d < p.head_dim; ++d) {
      out[d] /= denominator;
      if (fault != F::kCacheVScaleForgotten) out[d] *= scale_of(true);
      if (fault == F::kCacheVScaleTwice) out[d] *= scale_of(true);
    }
    if (fault == F::kLastHeadSkipped && head == p.heads - 1) std::fill_n(out, p.head_dim, 0.f);
    if (fault == F::kOneHeadTenthPercent && head == p.heads / 2)
      for (int d = 0; d < p.head_dim; ++d) out[d] *= 1.001f;
  }
};

void run_rows(const A& a, int first, int rows, std::span<const int32_t> sequence, F fault, Stream& stream) {
  const AttentionProblem& p = a.problem;
  const AttentionWeights& w = *a.weights;
  const Core core{a, p, fault};
  const int stride = p.gate ? 2 * p.head_dim : p.head_dim;
  const int64_t keys_at = int64_t{p.heads} * stride, values_at = keys_at + int64_t{p.kv_heads} * p.head_dim;
  const int64_t wide = int64_t{p.heads} * p.head_dim;
  std::vector<float> memory(static_cast<size_t>(rows * (p.hidden + p.qkv_rows() + wide)));
  const Rows x{memory.data(), p.hidden}, qkv{x.data + rows * x.width, p.qkv_rows()},
      out{qkv.data + rows * qkv.width, wide};
  reference::widen(a.x, first, rows, x);
  product(w.qkv, x, qkv, rows, stream);
  const auto sequence_of = [&](int64_t i) -> const BatchSequence& {
    return a.batch->sequences[static_cast<size_t>(sequence[static_cast<size_t>(first + i)])];
  };
  const auto position_of = [&](int64_t i) {
    return int64_t{sequence_of(i).ctx_len} + first + i - sequence_of(i).first_row;
  };
  for_each(stream, rows, [&](int64_t i) {
    const int64_t position = position_of(i);
    const auto both = [&](const FloatArray& weight, float* head, bool is_k) {
      if (fault == F::kRopeBeforeNorm) core.rotate(position, head, is_k);
      core.norm(weight, head, is_k);
      if (fault != F::kRopeBeforeNorm) core.rotate(position, head, is_k);
    };
    for (int h = 0; h < p.heads; ++h) both(w.q_norm, qkv[i] + h * stride, false);
    for (int h = 0; h < p.kv_heads; ++h) {
      float* k = qkv[i] + keys_at + h * p.head_dim;
      if (fault == F::kKBeforeRope)
        core.norm(w.k_norm, k, true);
      else
        both(w.k_norm, k, true);
      const int64_t at = core.cache_at(sequence_of(i), position, h);
      core.store(a.k_cache, at, k, p.head_dim, false);
      core.store(a.v_cache, at, qkv[i] + values_at + h * p.head_dim, p.head_dim, true);
    }
  });
  for_each(stream, int64_t{rows} * p.heads, [&](int64_t item) {
    const int64_t i = item / p.heads;
    const int h = static_cast<int>(item % p.heads);
    const float* q = qkv[i] + h * stride;
    float* o = out[i] + h * p.head_dim;
    core.attend(sequence_of(i), position_of(i), h, q, o);
    if (fault == F::kOutBf16BeforeGate) reference::round_if(true, o, p.head_dim);
    const float* gate = q + p.head_dim;
    if (fault == F::kGateOfNextHead) gate = qkv[i] + (h + 1) % p.heads * stride + p.head_dim;
    if (fault == F::kGateLayout) gate = qkv[i] + wide + h * p.head_dim;  // all of q, then all of the gate
    for (int d = 0; p.gate && fault != F::kGateMissing && d < p.head_dim; ++d) {
      const float z = fault == F::kGateBf16 ? bf16(gate[d]) : gate[d];
      o[d] *= fault == F::kGateSilu ? reference::silu(z) : reference::sigmoid(z);
      if (fault == F::kOutTruncated) o[d] = cut_to_bf16(o[d]);
    }
    reference::round_if(p.activation == Activation::kBf16 && fault != F::kOutNotRounded, o, p.head_dim);
  });
  product(w.out, out, Rows{out_of(a).row(first), p.hidden}, rows, stream);
}

template <F fault>
void copy(const Tactic&, const A& a, Stream& stream) {
  std::vector<int32_t> sequence;
  for (size_t q = 0; q < a.batch->sequences.size(); ++q)
    sequence.insert(sequence.end(), static_cast<size_t>(a.batch->sequences[q].q_len), static_cast<int32_t>(q));
  for (int first = 0; first < a.batch->rows; first += kRows)
    run_rows(a, first, std::min(kRows, a.batch->rows - first), sequence, fault, stream);
}

// ---- outside of the kernel
void with_sequences(const Tactic& t, const A& a, Stream& s, void (*change)(std::vector<BatchSequence>&)) {
  std::vector<BatchSequence> sequences(a.batch->sequences.begin(), a.batch->sequences.end());
  change(sequences);
  Batch batch = *a.batch;
  batch.sequences = sequences;
  A other = a;
  other.batch = &batch;
  right<AttentionOp>(t, other, s);
}
void last_context_one_shorter(const Tactic& t, const A& a, Stream& s) {
  with_sequences(t, a, s, [](std::vector<BatchSequence>& q) {
    if (q.back().ctx_len > 0) --q.back().ctx_len;
  });
}
void table_of_first_sequence(const Tactic& t, const A& a, Stream& s) {
  with_sequences(t, a, s, [](std::vector<BatchSequence>& q) {
    if (q.size() > 1 && q[0].ctx_len + q[0].q_len >= q[1].ctx_len + q[1].q_len) q[1].block_table = q[0].block_table;
  });
}
void foreign_block_written(const Tactic& t, const A& a, Stream& s) {
  right<AttentionOp>(t, a, s);
  std::memset(a.k_cache.data, 0, 64);  // block 0 belongs to nobody
}
void v_not_appended(const Tactic& t, const A& a, Stream& s) {
  const std::vector<uint8_t> before(a.v_cache.as<uint8_t>(), a.v_cache.as<uint8_t>() + a.v_cache.bytes());
  right<AttentionOp>(t, a, s);
  std::memcpy(a.v_cache.data, before.data(), before.size());
}
// The append of the next block's first row happens too early.
void one_row_too_many_appended(const Tactic& t, const A& a, Stream& s) {
  right<AttentionOp>(t, a, s);
  const BatchSequence& q = a.batch->sequences.back();
  const int64_t end = int64_t{q.ctx_len} + q.q_len, size = a.problem.block_size;
  if (end % size == 0) return;  // the table may end here
  const int64_t row = q.block_table[end / size] * size + end % size;
  const size_t bytes = a.v_cache.bytes() / static_cast<size_t>(a.v_cache.shape[0] * size);
  std::memset(a.v_cache.as<uint8_t>() + static_cast<size_t>(row) * bytes, 0, bytes);
}

constexpr Fault<AttentionOp> kFaults[] = {
    {"norm_without_plus_one", copy<F::kNormWithoutOne>},
    {"q_norm_for_k", copy<F::kQNormForK>},
    {"norm_missing", copy<F::kNormMissing>},
    {"norm_eps_ten_times", copy<F::kNormEps>},
    {"q_bf16_after_norm", copy<F::kNormBf16>},
    {"rope_adjacent_pairs", copy<F::kRopeAdjacentPairs>},
    {"rope_half_width", copy<F::kRopeHalfWidth>},
    {"rope_whole_head", copy<F::kRopeWholeHead>},
    {"rope_other_direction", copy<F::kRopeOtherSign>},
    {"rope_missing", copy<F::kRopeMissing>},
    {"rope_of_k_alone", copy<F::kRopeKOnly>},
    {"rope_table_bf16", copy<F::kRopeTableBf16>},
    {"rope_frequencies_1e_5", copy<F::kRopeFrequencies>},
    {"position_in_16_bits", copy<F::kPosition16Bits>},
    {"position_in_f16", copy<F::kPositionF16>},
    {"position_of_q_off_by_one", copy<F::kPositionOffByOne>},
    {"rope_before_norm", copy<F::kRopeBeforeNorm>},
    {"k_cached_before_rope", copy<F::kKBeforeRope>},
    {"kv_heads_swapped", copy<F::kKvHeadsSwapped>},
    {"wrong_kv_block", copy<F::kWrongBlock>},
    {"v_of_position_before", copy<F::kVOfPositionBefore>},
    {"q_not_scaled", copy<F::kQNotScaled>},
    {"scale_of_half_a_head", copy<F::kScaleOfHalfHead>},
    {"scale_half_a_permille_off", copy<F::kScaleOff>},
    {"mask_sees_next_key", copy<F::kMaskSeesNext>},
    {"mask_misses_own_key", copy<F::kMaskMissesSelf>},
    {"mask_missing_in_chunk", copy<F::kMaskPerChunk>},
    {"last_partial_block_skipped", copy<F::kLastPartialBlock>},
    {"first_key_skipped", copy<F::kFirstKeyMissing>},
    {"keys_beyond_1024_skipped", copy<F::kKeysBeyond1024>},
    {"window_of_256", copy<F::kWindow>},
    {"kv_head_by_modulo", copy<F::kHeadModulo>},
    {"softmax_without_maximum", copy<F::kMaxNotSubtracted>},
    {"sums_not_rescaled", copy<F::kRescaleMissing>},
    {"scores_in_f16", copy<F::kScoresF16>},
    {"p_bf16_undeclared", copy<F::kPBf16>},
    {"p_truncated", copy<F::kPTruncated>},
    {"denominator_without_last_key", copy<F::kDenominatorWithoutLast>},
    {"log2_e_in_five_digits", copy<F::kOrdinaryExpOfTwo>},
    {"gate_missing", copy<F::kGateMissing>},
    {"gate_by_silu", copy<F::kGateSilu>},
    {"gate_bf16", copy<F::kGateBf16>},
    {"gate_of_next_head", copy<F::kGateOfNextHead>},
    {"gate_behind_all_of_q", copy<F::kGateLayout>},
    {"core_not_rounded", copy<F::kOutNotRounded>},
    {"core_bf16_before_gate", copy<F::kOutBf16BeforeGate>},
    {"core_truncated", copy<F::kOutTruncated>},
    {"last_head_skipped", copy<F::kLastHeadSkipped>},
    {"one_head_a_permille_off", copy<F::kOneHeadTenthPercent>},
    {"cache_k_scale_forgotten", copy<F::kCacheKScaleForgotten>},
    {"cache_v_scale_forgotten", copy<F::kCacheVScaleForgotten>},
    {"cache_k_scale_twice", copy<F::kCacheKScaleTwice>},
    {"cache_v_scale_twice", copy<F::kCacheVScaleTwice>},
    {"cache_scales_swapped", copy<F::kCacheScalesSwapped>},
    {"cache_stored_unscaled", copy<F::kCacheStoredUnscaled>},
    {"cache_read_as_e5m2", copy<F::kCacheReadAsE5M2>},
    {"cache_overflows_to_nan", copy<F::kCacheOverflowsToNan>},
    {"cache_truncates", copy<F::kCacheTruncates>},
    {"cache_flushes_subnormals", copy<F::kCacheFlushesSubnormals>},
    {"last_context_one_shorter", last_context_one_shorter},
    {"table_of_first_sequence", table_of_first_sequence},
    {"foreign_block_written", foreign_block_written},
    {"v_not_appended", v_not_appended},
    {"one_row_too_many_appended", one_row_too_many_appended},
    {"last_row_skipped", C::last_row_skipped},
    {"stale_output", C::stale_output},
    {"uninitialised_scratch", C::uninitialised_scratch},
    {"reads_beyond_the_end", C::reads_beyond_the_end},
    {"neighbour_leaks", C::neighbour_leaks},
    {"odd_rows_wrong", C::odd_rows_wrong},
    {"wrong_from_64_rows_on", C::wrong_from_64_rows_on},
    {"column_one_percent", C::column_one_percent},
    {"last_bit_now_and_then", C::last_bit_now_and_then},
    {"data_race", C::data_race},
    {"loops_forever", C::loops_forever},
    {"segfaults", C::segfaults},
};

}  // namespace

template <>
std::span<const Fault<AttentionOp>> faults_of() {
  static const std::vector<Fault<AttentionOp>> all = [] {
    std::vector<Fault<AttentionOp>> faults(std::begin(kFaults), std::end(kFaults));
    const auto more = attention_tiled_faults().subspan(1);
    faults.insert(faults.end(), more.begin(), more.end());
    return faults;
  }();
  return all;
}
template <>
std::span<const Fault<AttentionOp>> copies_of() {
  static const std::vector<Fault<AttentionOp>> all = {{"copy", copy<F::kNone>}, attention_tiled_faults().front()};
  return all;
}

}  // namespace mettle::mutants
