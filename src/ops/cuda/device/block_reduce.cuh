// Sums, extremes and running sums over a block, in fixed order. A block is a multiple of 32 threads, 1024 at most; all
// its threads must call.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace mettle::cuda {

// f(f(..)) of all values, in every thread. Where no order matters, a warp reads each warp's value once; 1,024 threads
// that read 32 each keep a race checker busy for minutes.
template <class T, class F>
__device__ __forceinline__ T block_reduce(T v, F f) {
  __shared__ T of_warp[32];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = f(v, __shfl_xor_sync(0xffffffffu, v, d));
  __syncthreads();  // an earlier result may still be read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  if constexpr (std::is_integral_v<T>) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    v = of_warp[min(lane, warps - 1)];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const T other = __shfl_down_sync(0xffffffffu, v, d);
      if (lane + d < warps) v = f(v, other);
    }
    return __shfl_sync(0xffffffffu, v, 0);
  } else {
    v = of_warp[0];
    for (int w = 1; w < static_cast<int>(blockDim.x) / 32; ++w) v = f(v, of_warp[w]);
    return v;
  }
}
template <class T>
__device__ __forceinline__ T block_sum(T v) {
  return block_reduce(v, [](T a, T b) { return a + b; });
}
template <class T>
__device__ __forceinline__ T block_max(T v) {
  return block_reduce(v, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
__device__ __forceinline__ T block_min(T v) {
  return block_reduce(v, [](T a, T b) { return a < b ? a : b; });
}

// Sum of the values of all threads before this one.
template <class T>
__device__ __forceinline__ T block_sum_before(T v) {
  __shared__ T of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T sum = v;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const T below = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += below;
  }
  __syncthreads();
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  T before = sum - v;
  for (int w = 0; w < warp; ++w) before += of_warp[w];
  return before;
}

}  // namespace mettle::cuda
