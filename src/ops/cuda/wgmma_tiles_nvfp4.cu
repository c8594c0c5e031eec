// See wgmma_tiles.h.
#include "ops/cuda/device/wgmma_tiles.cuh"

namespace mettle::cuda {

void wgmma_tiles_nvfp4(const MmaTilesArgs& args) { tiles::run_wgmma<tiles::Nvfp4>(args); }

}  // namespace mettle::cuda
