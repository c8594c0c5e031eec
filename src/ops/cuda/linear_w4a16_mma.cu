// linear, NVFP4 weights: see linear_mma.h.
#include "ops/cuda/device/linear_mma.cuh"

namespace mettle::cuda {

void linear_w4a16_mma(const LinearMmaArgs& args) {
  switch (args.weight.unit_tiles) {
    case 8:
      return run_linear_mma<p64::Nvfp4Stream<8>>(args);
    case 4:
      return run_linear_mma<p64::Nvfp4Stream<4>>(args);
    case 2:
      return run_linear_mma<p64::Nvfp4Stream<2>>(args);
  }
  fail(Code::kInternal,
       "linear_w4a16_mma: units must have 2, 4 or 8 tiles, got " + std::to_string(args.weight.unit_tiles));
}

}  // namespace mettle::cuda
