// See wgmma_tiles.h.
#include "ops/cuda/device/wgmma_tiles.cuh"

namespace mettle::cuda {

void wgmma_tiles_fp8(const MmaTilesArgs& args) { tiles::run_wgmma<tiles::Fp8>(args); }

}  // namespace mettle::cuda
