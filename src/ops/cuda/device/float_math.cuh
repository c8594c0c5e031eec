// Plain float32 functions of kernels: accurate ones, so that sigmoid saturates to exactly 0 and 1 and exp(0) is 1.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace mettle::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }

__device__ __forceinline__ float from_bf16(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }
__device__ __forceinline__ uint16_t to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

// The same in every lane; the order of the additions is fixed.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kAllLanes, x, d);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, d));
  return x;
}
// 1 / sqrt(scale * sum of squares + eps) of `count` values, by one warp.
__device__ __forceinline__ float inverse_root(const float* x, int count, float scale, float eps, int lane) {
  float sum = 0;
  for (int i = lane; i < count; i += 32) sum = fmaf(x[i], x[i], sum);
  return 1.f / sqrtf(warp_sum(sum) * scale + eps);
}

}  // namespace mettle::cuda
