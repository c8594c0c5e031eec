// Both products of NVFP4 experts that take up to 16 rows each (16 a group; an expert with more has several groups). A
// group's rows of x are held in shared memory in the order of the fragments: moe_stream asks L1 for them anew with
// every tile row, and 16 rows lie in so many lines that L1, not memory, sets the pace. Weights go from memory straight
// to registers, so that shared memory carries x alone, and a block holds the rows of several groups, so that no warp
// waits for another at the end of a group. One block a multiprocessor; a warp takes one tile row after the other, and
// the next unit is on its way to a second set of registers while one is multiplied: asked for to L2 instead, weights
// come at 4.1 TB/s, not at 4.6 (bench/read_orders.cu). Sums: float32, k ascending; a row does not depend on others.
// Deterministic.
#pragma once
#include <algorithm>

#include "ops/cuda/mma_tiles.h"

namespace mettle::cuda {

inline constexpr int kMoeDirectRows = 16;   // of a group
inline constexpr int kMoeDirectSlots = 4;   // groups whose rows a block holds, at most
inline constexpr int kMoeDirectWarps = 16;  // of a block
// Of a pass; more go through moe_wide, or mma_tiles where that is not. H200, 35B shape: 512 rows 264 us, `wide` 303;
// prefill in chunks of 2,048 rows 31,200 tokens/s, with `wide` 35,300.
inline constexpr int kMoeDirectMostRows = 512;

// Shared memory of a group's rows of `tiles` times 64 values.
constexpr int moe_direct_slot_bytes(int tiles_k) { return kMoeDirectRows * 128 * tiles_k; }
// Groups that fit a block which may have so many bytes.
constexpr int moe_direct_slots(int tiles_k, size_t shared_per_block) {
  constexpr size_t kOwn = 512;  // of the kernel itself
  return shared_per_block <= kOwn ? 0
                                  : static_cast<int>(std::min<size_t>(
                                        (shared_per_block - kOwn) / moe_direct_slot_bytes(tiles_k), kMoeDirectSlots));
}
// With one alone every warp would wait for all others at the end of a group.
constexpr bool moe_direct_fits(int cols, size_t shared_per_block) {
  return moe_direct_slots((cols + 511) / 512 * 8, shared_per_block) >= 2;
}

void moe_direct(const MmaTilesArgs& args);  // with groups, weights NVFP4

}  // namespace mettle::cuda
