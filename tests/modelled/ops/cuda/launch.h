// A launch runs the whole kernel before it returns.
#pragma once
#include "cuda_runtime.h"

namespace mettle::cuda {

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool dependent = true;
};
template <class... P, class... A>
void launch(const Launch& l, void (*kernel)(P...), A... args) {
  modelled::run(l.grid, l.block, [&] { kernel(static_cast<P>(args)...); });
}

}  // namespace mettle::cuda
