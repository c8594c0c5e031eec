// Bytes on their way to L2 before they can be used: it takes no registers, and nothing waits for them.
#pragma once
#include <cuda_runtime.h>

namespace mettle::ptx {

__device__ __forceinline__ void prefetch_l2(const void* p) {  // the 128 bytes around p
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

}  // namespace mettle::ptx
