#include "cuda_runtime.h"

namespace mettle::cuda {
namespace {

// The dynamic shared memory that the kernel declares.
alignas(128) constinit thread_local uint8_t memory[modelled::kSharedBytes] = {};

}  // namespace

void model_shared_memory() { modelled::set_dynamic(memory, sizeof memory); }

}  // namespace mettle::cuda

#include "ops/cuda/gdn_chunk_scan.cu"

static_assert(mettle::cuda::gdn_scan_bytes(128) <= modelled::kSharedBytes);
