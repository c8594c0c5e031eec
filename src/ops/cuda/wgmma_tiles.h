// The same products as mma_tiles on the tensor cores of SM90 (wgmma, weights decoded in registers): for so many rows
// that arithmetic is what counts. block_rows: 64, 128 or 256.
// Sums: float32, k ascending; a row does not depend on others. Deterministic.
#pragma once
#include "ops/cuda/mma_tiles.h"

namespace mettle::cuda {

void wgmma_tiles(const MmaTilesArgs& args);  // by the format of the weight
void wgmma_tiles_nvfp4(const MmaTilesArgs& args);
void wgmma_tiles_fp8(const MmaTilesArgs& args);
void wgmma_tiles_bf16(const MmaTilesArgs& args);

}  // namespace mettle::cuda
