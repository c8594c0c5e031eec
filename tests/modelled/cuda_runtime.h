// What kernels take of the CUDA runtime, for a CPU: see block.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "block.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ thread_local
#define __align__(n) __attribute__((aligned(n)))
#define threadIdx modelled::thread_index
#define blockIdx modelled::block_index
#define blockDim modelled::block_extent

using std::max;
using std::min;
using dim3 = modelled::Extent;
using cudaStream_t = void*;
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct uint2 {
  uint32_t x, y;
};
struct alignas(8) ushort4 {
  uint16_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

inline void __syncthreads() { modelled::sync_block(); }
inline void __syncwarp() { modelled::sync_warp(); }
template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return modelled::from_lane(value, from);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return modelled::from_lane(value, modelled::lane() ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  return modelled::from_lane(value, modelled::lane() < distance ? modelled::lane() : modelled::lane() - distance);
}

inline uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
