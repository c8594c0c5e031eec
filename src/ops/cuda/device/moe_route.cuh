// Choice of experts by one warp, and the scalar functions of moe.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mettle::cuda {

__device__ __forceinline__ float sigmoid(float v) { return 1.f / (1.f + expf(-v)); }
__device__ __forceinline__ float silu(float v) { return v / (1.f + expf(-v)); }

// Order-preserving map of finite floats to unsigned, so that one redux finds a maximum. Adding 0 makes -0 a 0.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t bits = __float_as_uint(v + 0.f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// One warp chooses the top_k of a row by repeated maximum (ties: lowest id). Lane c returns choice c and its weight; a
// row that is not finite still gets valid ids and becomes NaN through its weights. PER_LANE * 32 >= experts.
struct Choice {
  int id;
  float weight;
};
template <int PER_LANE>
__device__ __forceinline__ Choice choose_row(const float* l, int experts, int top_k, bool renormalise, int lane) {
  uint32_t key[PER_LANE];  // 0: not there, or taken
  bool finite = true;
#pragma unroll
  for (int i = 0; i < PER_LANE; ++i) {
    const int e = i * 32 + lane;
    const float v = e < experts ? l[e] : 0.f;
    finite = finite && isfinite(v);
    key[i] = e < experts ? ordered(v) : 0u;
  }
  finite = __all_sync(0xffffffffu, finite);
  float most = 0, selected = 0;
  Choice mine = {lane, NAN};
  for (int c = 0; c < top_k; ++c) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) best = max(best, key[i]);
    const uint32_t top = __reduce_max_sync(0xffffffffu, best);
    uint32_t at = PER_LANE * 32;
#pragma unroll
    for (int i = PER_LANE - 1; i >= 0; --i) at = key[i] == top ? static_cast<uint32_t>(i * 32 + lane) : at;
    const int id = static_cast<int>(__reduce_min_sync(0xffffffffu, at));
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) key[i] = i * 32 + lane == id ? 0u : key[i];
    const float value = __uint_as_float((top & 0x80000000u) != 0 ? top & 0x7FFFFFFFu : ~top);
    if (c == 0) most = value;
    const float p = expf(value - most);
    selected += p;
    if (lane == c && finite) mine = {id, p};
  }
  if (!renormalise) {
    selected = 0;
    for (int e = lane; e < experts; e += 32) selected += expf(l[e] - most);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) selected += __shfl_xor_sync(0xffffffffu, selected, d);
  }
  mine.weight /= selected;
  return mine;
}

// The same for a row whose choice was made elsewhere.
__device__ __forceinline__ Choice given_row(const int32_t* ids, const float* weights, int top_k, int lane) {
  return lane < top_k ? Choice{ids[lane], weights[lane]} : Choice{0, 0.f};
}

}  // namespace mettle::cuda
