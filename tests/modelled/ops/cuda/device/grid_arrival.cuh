// src/ops/cuda/device/grid_arrival.cuh in plain code; blocks are threads of the CPU.
#pragma once
#include <thread>

#include "cuda_runtime.h"

namespace mettle::cuda {

inline void arrive(uint32_t* count) { __atomic_fetch_add(count, 1u, __ATOMIC_RELEASE); }
inline void wait_for_all(const uint32_t* count, uint32_t blocks) {
  while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < blocks) std::this_thread::yield();
}

}  // namespace mettle::cuda
