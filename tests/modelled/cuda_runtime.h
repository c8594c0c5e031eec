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
#define gridDim modelled::grid_extent
#define CUDA_CHECK(call) static_cast<void>(call)

using std::isfinite;
using std::max;
using std::min;
using dim3 = modelled::Extent;
using cudaStream_t = struct CUstream_st*;
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
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// A GPU of three multiprocessors, SM90 by what it can do.
enum {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
  cudaFuncAttributeMaxDynamicSharedMemorySize
};
inline void cudaGetDevice(int* device) { *device = 0; }
inline void cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount      ? 3
           : attribute == cudaDevAttrComputeCapabilityMajor ? 9
           : attribute == cudaDevAttrComputeCapabilityMinor ? 0
                                                            : static_cast<int>(modelled::kSharedBytes) - 1024;
}
template <class Kernel>
void cudaFuncSetAttribute(Kernel*, int, int bytes) {
  if (static_cast<size_t>(bytes) > modelled::kSharedBytes) __builtin_trap();
}

inline void __syncthreads() { modelled::sync_block(); }
inline void __syncwarp() { modelled::sync_warp(); }
inline void __threadfence_block() {}
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

template <class T>
T __shfl_down_sync(unsigned, T value, int distance) {
  return modelled::from_lane(value, modelled::lane() + distance > 31 ? modelled::lane() : modelled::lane() + distance);
}
template <class F>
uint32_t of_all_lanes(uint32_t value, const F& f) {
  *modelled::own_words() = value;
  const auto& all = modelled::all_words();
  uint32_t result = all[0][0];
  for (int lane = 1; lane < 32; ++lane) result = f(result, all[lane][0]);
  return result;
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t value) {
  return of_all_lanes(value, [](uint32_t a, uint32_t b) { return std::max(a, b); });
}
inline uint32_t __reduce_min_sync(unsigned, uint32_t value) {
  return of_all_lanes(value, [](uint32_t a, uint32_t b) { return std::min(a, b); });
}
inline bool __all_sync(unsigned mask, bool value) { return __reduce_min_sync(mask, value ? 1 : 0) != 0; }
inline uint32_t atomicAdd(uint32_t* at, uint32_t value) { return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST); }
inline int32_t atomicAdd(int32_t* at, int32_t value) { return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST); }
inline uint32_t atomicOr(uint32_t* at, uint32_t value) { return __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST); }
inline int __popc(uint32_t value) { return __builtin_popcount(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t places) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(bytes >> (places >> (4 * i) & 7) * 8 & 0xFF) << (8 * i);
  return result;
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
