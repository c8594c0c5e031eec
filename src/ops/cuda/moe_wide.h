// Both products of NVFP4 experts on the tensor cores of SM90, one pass over an expert's weights for up to block_rows
// (16, 32, 64, 96 or 128) rows; an expert with more has several groups. Persistent blocks take 256 rows of weights at a
// time. Between few rows, where the memory's rate counts, and many, where arithmetic does. Sums: float32, k ascending;
// a row does not depend on others. Deterministic.
#pragma once
#include "ops/cuda/device/p64.cuh"
#include "ops/cuda/mma_tiles.h"

namespace mettle::cuda {

// So that few experts have more rows than fit.
inline int moe_wide_rows(int64_t average) {
  return average <= 11 ? 16 : average <= 24 ? 32 : average <= 48 ? 64 : average <= 80 ? 96 : 128;
}
// Rows of x and h stand in an order of their own (moe_wide.cu), padded with zeros to whole tiles of 64.
METTLE_HD int wide_stride(int cols) { return (cols + 63) / 64 * 64; }
void moe_wide_order(const uint16_t* x, int rows, int cols, uint16_t* out, CUstream_st* stream);

// With groups, weights NVFP4; x as moe_wide_order() puts it, or h as the first product does.
void moe_wide(const MmaTilesArgs& args);

}  // namespace mettle::cuda
