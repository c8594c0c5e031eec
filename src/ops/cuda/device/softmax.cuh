// What the kernels of attention share.
#pragma once
#include "ops/cuda/device/float_math.cuh"

namespace mettle::cuda {

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}
// exp(score - top) as a power of two; top may be minus infinity when nothing is visible yet.
__device__ __forceinline__ float power(float score, float top, float exponent) {
  return exp2f((score - (top == -INFINITY ? 0.f : top)) * exponent);
}

}  // namespace mettle::cuda
