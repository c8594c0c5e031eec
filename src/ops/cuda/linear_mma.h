// linear on tensor cores for few rows: 1..16, of wide matrices 1..32, in one pass over the weights; more rows take more
// passes, side by side in one launch. mma.m16n8k16 with the weights as the 16-row operand. Weights NVFP4 (W4A16), FP8
// or BF16 in p64 layout, x bf16, y float32. Sums: float32, k in the order of units per warp, warps in fixed order:
// deterministic, a row does not depend on others.
#pragma once
#include <cstdint>

#include "ops/cuda/p64_view.h"

struct CUstream_st;

namespace mettle::cuda {

struct LinearMmaArgs {
  P64View weight;
  const uint16_t* x = nullptr;  // [rows, cols] bf16
  float* y = nullptr;           // [rows, weight.rows]
  int rows = 0;
  CUstream_st* stream = nullptr;
};

void linear_mma(const LinearMmaArgs& args);  // by the format of the weight
void linear_nvfp4_mma(const LinearMmaArgs& args);
void linear_fp8_mma(const LinearMmaArgs& args);
void linear_bf16_mma(const LinearMmaArgs& args);

}  // namespace mettle::cuda
