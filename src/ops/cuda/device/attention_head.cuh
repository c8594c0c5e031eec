// One head of a row as the qkv product left it, by a warp: norm and rotary, and the place of keys and values.
#pragma once
#include "ops/cuda/attention_flash.h"
#include "ops/cuda/device/cache_codes.cuh"
#include "ops/cuda/device/float_math.cuh"

namespace mettle::cuda {

inline constexpr int kMostHead = 256;

// Of a position, for all its heads; filled by a block of `threads`, which then needs a barrier.
struct AttentionAngles {
  float cosines[kMostHead / 2], sines[kMostHead / 2];

  __device__ __forceinline__ void fill(const AttentionFlash& a, int position, int threads) {
    for (int i = static_cast<int>(threadIdx.x); i < a.rotary_dim / 2; i += threads)
      sincosf(static_cast<float>(position) * a.inv_freq[i], &sines[i], &cosines[i]);
  }
};

// Where a key or value of the cache is written.
struct CachePlace {
  uint16_t* to;
  uint8_t* codes;  // null: bf16
  float scale;

  __device__ __forceinline__ CachePlace(const AttentionFlash& a, bool is_v, int64_t at)
      : to(static_cast<uint16_t*>(is_v ? a.v_cache : a.k_cache) + at),
        codes(a.codes ? static_cast<uint8_t*>(is_v ? a.v_cache : a.k_cache) + at : nullptr),
        scale(is_v ? a.v_scale : a.k_scale) {}
  __device__ __forceinline__ void operator()(int i, float x) const {
    if (codes != nullptr)
      codes[i] = to_code(x / scale);
    else
      to[i] = to_bf16(x);
  }
};

// Values lane, lane + 32, ... of a head.
struct AttentionHead {
  static constexpr int kMine = kMostHead / 32;
  float value[kMine], factor[kMine];

  // What no kernel of the step writes: the weights of the norm.
  __device__ __forceinline__ void load_factors(const AttentionFlash& a, bool is_q, int lane) {
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const int i = lane + 32 * j;
      factor[j] = a.plus_one ? 1.f : 0.f;
      if (a.qk_norm && i < a.head_dim) factor[j] += (is_q ? a.q_norm : a.k_norm)[i];
    }
  }
  __device__ __forceinline__ void load(const float* from, int d, int lane) {
#pragma unroll
    for (int j = 0; j < kMine; ++j) value[j] = lane + 32 * j < d ? from[lane + 32 * j] : 0.f;
  }
  template <class Put>
  __device__ __forceinline__ void put_as_is(int d, int lane, const Put& put) const {
#pragma unroll
    for (int j = 0; j < kMine; ++j)
      if (lane + 32 * j < d) put(lane + 32 * j, value[j]);
  }
  // `head`: kMostHead floats of shared memory of the warp.
  template <class Put>
  __device__ __forceinline__ void put_turned(const AttentionFlash& a, const AttentionAngles& angles, float* head,
                                             int lane, const Put& put) {
    const int d = a.head_dim, half = a.rotary_dim / 2;
    float squares = 0;
#pragma unroll
    for (int j = 0; j < kMine; ++j) squares = fmaf(value[j], value[j], squares);
    const float scale = a.qk_norm ? 1.f / sqrtf(warp_sum(squares) / static_cast<float>(d) + a.eps) : 1.f;
    __syncwarp();  // an earlier head may still be read
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      if (a.qk_norm) value[j] = value[j] * scale * factor[j];
      if (lane + 32 * j < d) head[lane + 32 * j] = value[j];
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const int i = lane + 32 * j;
      if (i >= d) continue;
      float turned = value[j];
      if (i < half)
        turned = turned * angles.cosines[i] - head[i + half] * angles.sines[i];
      else if (i < a.rotary_dim)
        turned = turned * angles.cosines[i - half] + head[i - half] * angles.sines[i - half];
      put(i, turned);
    }
  }
};

}  // namespace mettle::cuda
