#include "cuda_runtime.h"

namespace mettle::cuda {
namespace {

// The dynamic shared memory that the kernel declares.
alignas(128) constinit thread_local uint8_t memory[modelled::kSharedBytes] = {};

}  // namespace

void model_direct_memory() { modelled::set_dynamic(memory, sizeof memory); }

}  // namespace mettle::cuda

#include "ops/cuda/moe_direct.cu"
