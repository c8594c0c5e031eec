// moe for few rows (1..32 in one pass over the active experts; more rows take more passes): router product, choice of
// experts (a single row: inside the next kernel), gate_up + SwiGLU, down, combine (one or two rows: one kernel). Each
// active expert's weights are read once whatever the routing. Routed experts are NVFP4. A shared expert of the same
// format and width rides along as one more slot; any other is computed by product() and joins in the combination.
// Deterministic; a row's result does not depend on its neighbours.
#pragma once
#include <cstdint>

#include "ops/cuda/p64_view.h"
#include "ops/moe.h"

struct CUstream_st;

namespace mettle::cuda {

constexpr int kFewRows = 32;  // a row is one bit of an expert's mask
constexpr int kMaxExperts = 512;
constexpr int kMaxTopK = 16;

void moe_few_rows(const MoeArgs& args, CUstream_st* stream);

}  // namespace mettle::cuda
