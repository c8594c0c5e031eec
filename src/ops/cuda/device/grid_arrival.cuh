// Blocks of one grid that are all on the GPU tell each other that what they have written is there. A count in memory
// that is 0 before the first of them arrives.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mettle::cuda {

// By one thread, behind a barrier of its block: everything that the block has written is seen by who has waited.
__device__ __forceinline__ void arrive(uint32_t* count) {
  asm volatile("red.release.gpu.global.add.u32 [%0],%1;" ::"l"(count), "r"(1u) : "memory");
}

// By one thread, ahead of a barrier of its block. Blocks that are not there within seconds are a fault of the program:
// the kernel fails rather than hangs.
__device__ __forceinline__ void wait_for_all(const uint32_t* count, uint32_t blocks) {
  constexpr int64_t kPatience = 20'000'000'000;  // clocks, about ten seconds
  const int64_t begin = clock64();
  for (uint32_t there = 0; there < blocks;) {
    asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(there) : "l"(count) : "memory");
    if (there < blocks && clock64() - begin > kPatience) __trap();
  }
}

}  // namespace mettle::cuda
