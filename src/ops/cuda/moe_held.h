// Both products of NVFP4 experts that take 8 to 16 rows each (16 a group; an expert with more has several groups): as
// moe_stream, but a group's rows of x are held in shared memory, in the order of the fragments, by a block that works
// through tile rows of that group, and a warp multiplies two tile rows at once against what it reads of them.
// moe_stream asks L1 for a group's rows anew with every tile row: 16 rows lie in so many lines that L1, not memory,
// sets the pace. Sums: float32, k ascending; a row does not depend on others. Deterministic.
#pragma once
#include "ops/cuda/mma_tiles.h"

namespace mettle::cuda {

inline constexpr int kMoeHeldRows = 16;                      // of a group
inline constexpr int kMoeHeldWarps = 5, kMoeHeldBlocks = 2;  // of a block; of a multiprocessor

// Shared memory of a block: 16 rows of k values, and for each warp two units.
constexpr size_t moe_held_bytes(int tiles_k, int unit_bytes) {
  return size_t{2} * kMoeHeldRows * 64 * static_cast<size_t>(tiles_k) +
         size_t{2} * kMoeHeldWarps * static_cast<size_t>(unit_bytes);
}
// Whether two blocks of 16 rows of `cols` values fit a multiprocessor that lets one block have so many bytes.
constexpr bool moe_held_fits(int cols, size_t shared_per_block) {
  return 2 * (moe_held_bytes((cols + 511) / 512 * 8, 4608) + 1024 + 128) <= shared_per_block + 1024;
}

void moe_held(const MmaTilesArgs& args);  // with groups, weights NVFP4

}  // namespace mettle::cuda
