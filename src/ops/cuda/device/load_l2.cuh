// Loads past L1 that stay where they stand: what a kernel reads before ptx::wait() because the kernel ahead let it
// start only when these bytes were there.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mettle::cuda {

__device__ __forceinline__ int32_t load_l2(const int32_t* p) {
  int32_t v;
  asm volatile("ld.global.cg.s32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
template <class T>
__device__ __forceinline__ const T* load_l2(const T* const* p) {
  uint64_t v;
  asm volatile("ld.global.cg.u64 %0,[%1];" : "=l"(v) : "l"(p) : "memory");
  return reinterpret_cast<const T*>(v);
}

}  // namespace mettle::cuda
