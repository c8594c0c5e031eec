// Weights in another format than the checkpoint's.
#pragma once
#include "base/thread_team.h"
#include "checkpoint/weight_memory.h"
#include "tensor/weight.h"

namespace mettle {

// A BF16 matrix as FP8 with a scale for each row: largest magnitude / 448 in float32, codes round(w / scale) to nearest
// even. Lives in `memory`. Fails with kBadModel when a weight is not finite.
RawMatrix requantised_fp8(const RawMatrix& bf16, WeightMemory& memory, ThreadTeam* team);

}  // namespace mettle
