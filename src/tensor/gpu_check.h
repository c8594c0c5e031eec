// Every CUDA runtime call goes through CUDA_CHECK; only files built with CUDA include this.
#pragma once
#include <cuda_runtime.h>

#include <string>

#include "base/error.h"

namespace mettle::gpu {

// Fails with kDevice naming the call, the error and its text.
inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    fail(Code::kDevice, std::string(call) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

}  // namespace mettle::gpu

#define CUDA_CHECK(call) ::mettle::gpu::check((call), #call)
