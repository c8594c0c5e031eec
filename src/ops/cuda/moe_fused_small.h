// moe of a single row in one kernel: router, choice, gate_up + SwiGLU, down, combination, shared expert. The blocks are
// on the GPU together (never more than multiprocessors, one fits each) and hand each other scores and rows of h as
// packets that carry the number of the launch: no barrier of the whole grid, and nothing to be reset between launches
// or replays of a graph. Packets lie in memory of the module, not in the workspace, whose contents do not outlive a
// call; each stream has its own, of at most eight streams. A block that waits for seconds ends the kernel with an
// error. More rows go to moe_few_rows. Deterministic; sums float32.
#pragma once
#include "ops/cuda/moe_few_rows.h"

namespace mettle::cuda {

// What it takes beside what moe_few_rows does.
inline constexpr int kFusedHidden = 4096, kFusedWidth = 2048;

void moe_fused_small(const MoeArgs& args, CUstream_st* stream);

// What the launches of one stream leave each other has a place per stream: the first kFusedStates streams of a process
// share none.
inline constexpr int kFusedStates = 8;
int fused_state_of(CUstream_st* stream);

}  // namespace mettle::cuda
