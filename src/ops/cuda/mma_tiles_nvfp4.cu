// See mma_tiles.h.
#include "ops/cuda/device/mma_tiles.cuh"

namespace mettle::cuda {

void mma_tiles_nvfp4(const MmaTilesArgs& args) { tiles::run_tiles<tiles::Nvfp4>(args); }

}  // namespace mettle::cuda
