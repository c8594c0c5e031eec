// See wgmma_tiles.h.
#include "ops/cuda/device/wgmma_tiles.cuh"

namespace mettle::cuda {

void wgmma_tiles_bf16(const MmaTilesArgs& args) { tiles::run_wgmma<tiles::Bf16>(args); }

}  // namespace mettle::cuda
