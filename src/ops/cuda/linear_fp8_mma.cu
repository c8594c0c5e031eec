// linear, FP8 weights: see linear_mma.h.
#include "ops/cuda/device/linear_mma.cuh"

namespace mettle::cuda {

void linear_fp8_mma(const LinearMmaArgs& args) { run_linear_mma<p64::Fp8Stream>(args); }

}  // namespace mettle::cuda
