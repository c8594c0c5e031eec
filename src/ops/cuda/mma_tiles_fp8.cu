// See mma_tiles.h.
#include "ops/cuda/device/mma_tiles.cuh"

namespace mettle::cuda {

void mma_tiles_fp8(const MmaTilesArgs& args) { tiles::run_tiles<tiles::Fp8>(args); }

}  // namespace mettle::cuda
