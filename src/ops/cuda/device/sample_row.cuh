// What sample's kernels share: the order of tokens, their mass, changed logits, and the whole of sample for one row by
// one block in plain steps.
//
// A token's place is one number: the order-preserving form of its logit, then its id reversed, so that of two tokens
// the one with the larger place comes first. Mass is the weight exp((logit - top) / temperature) as an integer: sums do
// not depend on their order, and of what is kept the part up to a token is compared exactly.
#pragma once
#include <cmath>

#include "ops/cuda/device/block_reduce.cuh"
#include "ops/cuda/sample_kernels.h"

namespace mettle::cuda {

constexpr int kIdBits = 24, kPlaceBits = 32 + kIdBits;
constexpr uint32_t kIdMask = (1u << kIdBits) - 1;
constexpr uint32_t kForbidden = 0x007FFFFFu;  // key of -infinity; every finite logit has a larger one
constexpr float kMassOfOne = 0x1p35f;

__device__ __forceinline__ uint32_t key_of(float v) {
  const uint32_t bits = __float_as_uint(v + 0.f);  // -0 becomes 0: the two are equal
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}
__device__ __forceinline__ uint64_t place_of(float v, int id) {
  return uint64_t{key_of(v)} << kIdBits | (kIdMask - static_cast<uint32_t>(id));
}
__device__ __forceinline__ uint32_t key_at(uint64_t place) { return static_cast<uint32_t>(place >> kIdBits); }
__device__ __forceinline__ int id_at(uint64_t place) {
  return static_cast<int>(kIdMask - (static_cast<uint32_t>(place) & kIdMask));
}

// The intrinsics keep the compiler from fusing: every kernel finds the same mass.
__device__ __forceinline__ float weight_of(float v, float top, float per_temperature) {
  return expf(-__fmul_rn(__fsub_rn(top, v), per_temperature));
}
__device__ __forceinline__ uint64_t mass_of(float weight) { return __float2ull_rn(weight * kMassOfOne); }
__device__ __forceinline__ float per_temperature_of(const DeviceSampleRow& p) {
  return 1.f / fmaxf(p.temperature, 1e-30f);
}
// Mass that the kept tokens must reach, at least one unit: the first token always stays.
__device__ __forceinline__ uint64_t top_p_limit(float top_p, uint64_t total) {
  const uint64_t limit = static_cast<uint64_t>(ceil(static_cast<double>(top_p) * static_cast<double>(total)));
  return limit > 0 ? limit : 1;
}
__device__ __forceinline__ uint64_t drawn_mass(double random, uint64_t kept) {
  const uint64_t mass = static_cast<uint64_t>(random * static_cast<double>(kept));
  return mass < kept ? mass : kept - 1;
}

struct RowLogits {
  const float* raw;
  const uint32_t* changed;  // null: none is
  const float* value;
  int usable;

  __device__ float adjusted(int id, float logit) const {
    return changed != nullptr && (changed[id / 32] >> (id % 32) & 1) != 0 ? value[id] : logit;
  }
  __device__ float adjusted(int id) const { return adjusted(id, raw[id]); }
};
__device__ __forceinline__ RowLogits logits_of(const SampleLaunch& a, int row, const DeviceSampleRow& p) {
  return {a.logits + int64_t{row} * a.vocab,
          p.counts > 0 || p.biases > 0 ? a.changes.changed + int64_t{row} * a.changes.words : nullptr,
          a.changes.value + int64_t{row} * a.usable, a.usable};
}

// Bias and mask, then penalties. The lists name each id once.
__device__ inline void adjust_row(const SampleLaunch& a, int row, const DeviceSampleRow& p) {
  if (p.counts == 0 && p.biases == 0) return;
  const float* raw = a.logits + int64_t{row} * a.vocab;
  uint32_t* changed = a.changes.changed + int64_t{row} * a.changes.words;
  float* value = a.changes.value + int64_t{row} * a.usable;
  for (int w = threadIdx.x; w < a.changes.words; w += blockDim.x) changed[w] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < p.biases; i += blockDim.x) {
    const TokenBias b = a.sample.biases[p.biases_begin + i];
    if (b.id < 0 || b.id >= a.usable) continue;
    value[b.id] = raw[b.id] + b.bias;
    atomicOr(&changed[b.id / 32], 1u << (b.id % 32));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.counts; i += blockDim.x) {
    const TokenCount c = a.sample.counts[p.counts_begin + i];
    if (c.id < 0 || c.id >= a.usable || (!c.in_prompt && c.in_output <= 0)) continue;
    const uint32_t bit = 1u << (c.id % 32);
    const bool biased = (atomicOr(&changed[c.id / 32], bit) & bit) != 0;
    double l = biased ? value[c.id] : raw[c.id];
    l = l > 0 ? l / p.repetition : l * p.repetition;
    if (c.in_output > 0) l -= static_cast<double>(p.presence) + static_cast<double>(p.frequency) * c.in_output;
    value[c.id] = static_cast<float>(l);
  }
  __syncthreads();
}

// measure(id, place) summed over the row, in every thread.
template <class Measure>
__device__ inline uint64_t sum_of(const RowLogits& logits, Measure measure) {
  uint64_t sum = 0;
  for (int id = threadIdx.x; id < logits.usable; id += blockDim.x) {
    const float v = logits.adjusted(id);
    sum += measure(v, place_of(v, id));
  }
  return block_sum(sum);
}

// The first token, from the best down, at which the running sum of measure(logit, place) exceeds `target`; two bits of
// its place per pass over the row. The sum over all must exceed it.
template <class Measure>
__device__ inline uint64_t descend(const RowLogits& logits, uint64_t target, Measure measure) {
  uint64_t found = 0;
  for (int shift = kPlaceBits - 2; shift >= 0; shift -= 2) {
    uint64_t sum[4] = {};
    for (int id = threadIdx.x; id < logits.usable; id += blockDim.x) {
      const float v = logits.adjusted(id);
      const uint64_t place = place_of(v, id);
      if ((place ^ found) >> (shift + 2) != 0) continue;
      const uint64_t m = measure(v, place);
      const int digit = static_cast<int>(place >> shift & 3);
#pragma unroll
      for (int d = 0; d < 4; ++d) sum[d] += digit == d ? m : 0;
    }
    uint64_t digit = 3;
    for (int d = 3; d >= 1; --d) {
      const uint64_t above = block_sum(sum[d]);
      if (digit != static_cast<uint64_t>(d)) continue;
      if (above > target) continue;
      target -= above;
      --digit;
    }
    found |= digit << shift;
  }
  return found;
}

// The drawn token of a row whose best token stands at `best`.
__device__ inline int draw_plain(const RowLogits& logits, const DeviceSampleRow& p, uint64_t best) {
  const float top = logit_of(key_at(best)), per_temperature = per_temperature_of(p);
  uint64_t last = 0;  // place of the last token that is kept
  if (p.top_k > 0 && p.top_k < logits.usable)
    last = descend(logits, static_cast<uint64_t>(p.top_k) - 1, [](float, uint64_t) { return uint64_t{1}; });
  const auto mass = [&](float v, uint64_t place) {
    return place >= last ? mass_of(weight_of(v, top, per_temperature)) : 0;
  };
  if (p.top_p < 1) last = descend(logits, top_p_limit(p.top_p, sum_of(logits, mass)) - 1, mass);
  const auto kept = [&](float v, uint64_t place) {
    if (place < last) return uint64_t{0};
    const float w = weight_of(v, top, per_temperature);
    return w >= p.min_p || place == best ? mass_of(w) : 0;
  };
  return id_at(descend(logits, drawn_mass(p.random, sum_of(logits, kept)), kept));
}

// Into memory that may be the host's: one write.
__device__ inline void write_result(const SampleResult& result, SampleResult* to) {
  __syncthreads();
  constexpr int kWords = sizeof(SampleResult) / 4;
  for (int i = threadIdx.x; i < kWords; i += blockDim.x)
    reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(&result)[i];
}

__device__ __forceinline__ float logprob_of(float logit, double log_sum) {
  return static_cast<float>(static_cast<double>(logit) - log_sum);
}

// All of sample for one row; its changes are made already.
__device__ inline void sample_row_plain(const SampleLaunch& a, int row, const DeviceSampleRow& p) {
  __shared__ SampleResult result;
  const RowLogits logits = logits_of(a, row, p);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(SampleResult) / 4); i += blockDim.x)
    reinterpret_cast<uint32_t*>(&result)[i] = i == 0 ? ~0u : 0u;  // token -1
  bool bad = false;
  float top = -INFINITY;
  uint64_t best = 0;
  for (int id = threadIdx.x; id < a.usable; id += blockDim.x) {
    const float v = logits.raw[id];
    bad |= !isfinite(v);
    top = fmaxf(top, v);
    const uint64_t place = place_of(logits.adjusted(id, v), id);
    best = place > best ? place : best;
  }
  bad = __syncthreads_or(bad) != 0;
  top = block_max(top);
  best = block_max(best);
  if (bad || key_at(best) <= kForbidden) return write_result(result, a.results + row);

  double sum = 0;
  for (int id = threadIdx.x; id < a.usable; id += blockDim.x) sum += expf(logits.raw[id] - top);
  const double log_sum = top + log(block_sum(sum));
  const int token = p.temperature > 0 ? draw_plain(logits, p, best) : id_at(best);
  if (threadIdx.x == 0) {
    result.token = token;
    result.logprob = logprob_of(logits.raw[token], log_sum);
  }
  const int wanted = min(min(p.top_logprobs, 20), a.usable);
  uint64_t before = ~uint64_t{0};
  for (int i = 0; i < wanted; ++i) {
    uint64_t next = 0;
    for (int id = threadIdx.x; id < a.usable; id += blockDim.x) {
      const uint64_t place = place_of(logits.raw[id], id);
      if (place < before && place > next) next = place;
    }
    before = block_max(next);
    if (threadIdx.x == 0) {
      result.top_ids[i] = id_at(before);
      result.top_logprobs[i] = logprob_of(logit_of(key_at(before)), log_sum);
    }
  }
  write_result(result, a.results + row);
}

}  // namespace mettle::cuda
