// First in every planted copy: which fault is on, and what faults are made of. See plant.py.
#pragma once
#include <cstdint>

namespace mettle::planted {

inline int fault = 0;                // 0: none
void at_start(void (*set)(int));     // called by every source with device code before main()
void switch_on(int number);          // for host and device; the device is idle
int calls();                         // how often it was called before
const void* earlier(const void* p);  // what the first call in this process was given

}  // namespace mettle::planted

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include "tensor/gpu_check.h"

namespace mettle::planted {

static __constant__ int fault_on_device;
[[maybe_unused]] static const bool told =
    (at_start([](int number) { CUDA_CHECK(cudaMemcpyToSymbol(fault_on_device, &number, sizeof number)); }), true);

// So that a race that could be lost is lost.
static __device__ __forceinline__ void spin(int64_t clocks) {
  for (const int64_t begin = clock64(); clock64() - begin < clocks;) {
  }
}

[[maybe_unused]] static bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status == cudaStreamCaptureStatusActive;
}

// A counter that nobody resets between replays: in a captured graph the first replay of this process finds it right.
static __device__ int replays;
[[maybe_unused]] static __global__ void spoil_kernel(float* y) {
  if (++replays > 1) *y = *y * 1.5f + 1;
}
[[maybe_unused]] static void spoil_later_replays(float* y, cudaStream_t stream) {
  if (capturing(stream)) spoil_kernel<<<1, 1, 0, stream>>>(y);
}

// Words from the host by a copy on the stream.
static __device__ int32_t words[1024];
[[maybe_unused]] static const int32_t* copied(const int32_t* from, int count, cudaStream_t stream) {
  void* to = nullptr;
  CUDA_CHECK(cudaGetSymbolAddress(&to, words));
  CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(count < 1024 ? count : 1024) * sizeof(int32_t),
                             cudaMemcpyHostToDevice, stream));
  return static_cast<const int32_t*>(to);
}

}  // namespace mettle::planted

__host__ __device__ __forceinline__ bool mettle_planted(int number) {
#if defined(__CUDA_ARCH__)
  return mettle::planted::fault_on_device == number;
#else
  return mettle::planted::fault == number;
#endif
}
#else
inline bool mettle_planted(int number) { return mettle::planted::fault == number; }
#endif
