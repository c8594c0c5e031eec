// moe for many rows: router product, choice, rows grouped by expert on the device, both products of all groups by
// mma_tiles or wgmma_tiles, weighted sum. Experts in any format of p64. A shared expert of the same format and width
// rides along as one more expert that takes all rows; any other is computed by product(). More than kMoeTilesRows rows
// take several passes. Deterministic: a row's place in its group does not change its result.
#pragma once
#include <cstddef>

#include "ops/cuda/tile_engine.h"
#include "ops/moe.h"

struct CUstream_st;

namespace mettle::cuda {

constexpr int kMoeTilesRows = 2048;  // of one pass: bounds the workspace

size_t moe_tiles_workspace(const MoeProblem& p, int rows);
void moe_tiles(const MoeArgs& args, TileEngine engine, CUstream_st* stream);

}  // namespace mettle::cuda
