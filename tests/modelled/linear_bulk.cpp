#include "cuda_runtime.h"

namespace mettle::cuda {
namespace {

// The dynamic shared memory that the kernel declares.
alignas(1024) constinit thread_local uint8_t memory[modelled::kSharedBytes] = {};

}  // namespace

void model_linear_bulk_memory() { modelled::set_dynamic(memory, sizeof memory); }

}  // namespace mettle::cuda

#define __CUDA_ARCH_FEAT_SM90_ALL 1
#include "ops/cuda/linear_bulk.cu"
