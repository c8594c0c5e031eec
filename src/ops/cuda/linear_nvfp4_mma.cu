// linear, NVFP4 weights, and the choice by format: see linear_mma.h.
#include "ops/cuda/device/linear_mma.cuh"

namespace mettle::cuda {

void linear_nvfp4_mma(const LinearMmaArgs& args) {
  if (args.weight.unit_tiles == 8) return run_linear_mma<p64::Nvfp4Stream<8>>(args);
  if (args.weight.unit_tiles == 4) return run_linear_mma<p64::Nvfp4Stream<4>>(args);
  run_linear_mma<p64::Nvfp4Stream<2>>(args);
}

void linear_mma(const LinearMmaArgs& args) {
  if (args.weight.format == WeightFormat::kNvfp4) return linear_nvfp4_mma(args);
  if (args.weight.format == WeightFormat::kFp8) return linear_fp8_mma(args);
  linear_bf16_mma(args);
}

}  // namespace mettle::cuda
