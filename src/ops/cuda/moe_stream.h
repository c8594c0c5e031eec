// Both products of NVFP4 experts that take few rows each (8 or 16 a group; an expert with more has several groups): one
// pass over the weights at the rate of the memory, whatever the routing. Persistent blocks, each with an equal share of
// the tile rows of all groups; a warp streams its tile rows through a ring of its own (cp.async), decodes in registers
// and multiplies by mma.m16n8k16 with the weights as the 16-row operand. No barrier but one at the start. The products
// of a pass follow each other without a kernel between: the second brings its first weights before the first has ended.
// Sums: float32, k ascending; a row does not depend on others. Deterministic.
#pragma once
#include "ops/cuda/mma_tiles.h"

namespace mettle::cuda {

inline constexpr int kMoeStreamLeastRows = 8, kMoeStreamMostRows = 16;  // block_rows is one of them

void moe_stream(const MmaTilesArgs& args);  // with groups, weights NVFP4

}  // namespace mettle::cuda
