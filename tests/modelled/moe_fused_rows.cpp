#include "cuda_runtime.h"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

// The dynamic shared memory that the kernel declares, of each block's thread.
alignas(128) constinit thread_local uint8_t memory[modelled::kSharedBytes] = {};

// Its blocks wait for each other.
template <class... P, class... A>
void launch_together(const Launch& l, void (*kernel)(P...), A... args) {
  modelled::run_together(
      l.grid, l.block, [] { modelled::set_dynamic(memory, sizeof memory); }, [&] { kernel(static_cast<P>(args)...); });
}

}  // namespace
}  // namespace mettle::cuda

#define launch launch_together
#include "ops/cuda/moe_fused_rows.cu"
