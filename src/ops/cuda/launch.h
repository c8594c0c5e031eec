// The only place that launches kernels: checks the call and sets programmatic dependent launch.
#pragma once
#include <cuda_runtime.h>

#include "tensor/gpu_check.h"

namespace mettle::cuda {

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool dependent =
      true;  // may start before the kernel ahead of it ends; it calls ptx::wait() before it reads its output
};

template <class... P, class... A>
void launch(const Launch& l, void (*kernel)(P...), A... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = l.grid;
  config.blockDim = l.block;
  config.dynamicSmemBytes = l.shared_bytes;
  config.stream = l.stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = l.dependent ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...));
}

}  // namespace mettle::cuda
