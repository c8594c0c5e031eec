// Both products of NVFP4 experts on the tensor cores of SM90, one pass over an expert's weights for up to block_rows
// (16, 32, 64, 96 or 128) rows; an expert with more has several groups. Persistent blocks take 256 rows of weights at a
// time. Between few rows, where the memory's rate counts, and many, where arithmetic does. Sums: float32, k ascending;
// a row does not depend on others. Deterministic.
#pragma once
#include "ops/cuda/mma_tiles.h"

namespace mettle::cuda {

// So that few experts have more rows than fit.
inline int moe_wide_rows(int64_t average) {
  return average <= 11 ? 16 : average <= 24 ? 32 : average <= 48 ? 64 : average <= 80 ? 96 : 128;
}
void moe_wide(const MmaTilesArgs& args);  // with groups, weights NVFP4

}  // namespace mettle::cuda
