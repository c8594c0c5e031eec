// A run of bytes on its way to L2 by one instruction of one lane where there is one (SM90): a line a lane costs L1 a
// step for each line.
#pragma once
#include "ops/cuda/device/prefetch.cuh"

namespace mettle::ptx {

// By all lanes of a warp; BYTES a multiple of 16, p aligned to 16.
template <int BYTES>
__device__ __forceinline__ void prefetch_l2(const uint8_t* p, int lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0],%1;" ::"l"(p), "n"(BYTES));
#else
  for (int at = lane * 128; at < BYTES; at += 32 * 128) prefetch_l2(p + at);
#endif
}

}  // namespace mettle::ptx
