// linear, BF16 weights: see linear_mma.h.
#include "ops/cuda/device/linear_mma.cuh"

namespace mettle::cuda {

void linear_bf16_mma(const LinearMmaArgs& args) { run_linear_mma<p64::Bf16Stream>(args); }

}  // namespace mettle::cuda
