// What the kernels of the delta rule share: groups of 128 threads hold 32 columns of a state, a thread four columns of
// one of sixteen row groups (lane % 8: columns; warp and lane / 8: rows).
#pragma once
#include "ops/cuda/device/float_math.cuh"

namespace mettle::cuda {

inline constexpr int kGdnGroup = 128;

// Sum over the row groups of a warp, in every lane.
__device__ __forceinline__ float4 add_groups(float4 x) {
#pragma unroll
  for (int d = 8; d < 32; d *= 2) {
    x.x += __shfl_xor_sync(kAllLanes, x.x, d);
    x.y += __shfl_xor_sync(kAllLanes, x.y, d);
    x.z += __shfl_xor_sync(kAllLanes, x.z, d);
    x.w += __shfl_xor_sync(kAllLanes, x.w, d);
  }
  return x;
}
// Sum of what the four warps wrote, for columns c.
__device__ __forceinline__ float4 add_warps(const float4 (&part)[4][8], int c) {
  float4 sum = part[0][c];
#pragma unroll
  for (int w = 1; w < 4; ++w) {
    const float4 v = part[w][c];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  return sum;
}

// norm(o) * w * silu(z) of four columns; scale: of the norm.
__device__ __forceinline__ void store_core(uint16_t* to, const float4& o, float scale, const float4& weight,
                                           const float4& z) {
  ushort4 out;
  out.x = to_bf16(o.x * scale * weight.x * silu(z.x));
  out.y = to_bf16(o.y * scale * weight.y * silu(z.y));
  out.z = to_bf16(o.z * scale * weight.z * silu(z.z));
  out.w = to_bf16(o.w * scale * weight.w * silu(z.w));
  *reinterpret_cast<ushort4*>(to) = out;
}

}  // namespace mettle::cuda
