// See mma_tiles.h.
#include "ops/cuda/device/mma_tiles.cuh"

namespace mettle::cuda {

void mma_tiles_bf16(const MmaTilesArgs& args) { tiles::run_tiles<tiles::Bf16>(args); }

}  // namespace mettle::cuda
