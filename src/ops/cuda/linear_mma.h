// linear on tensor cores for few rows (1..16 in one pass over the weights; more rows take more passes): mma.m16n8k16
// with the weights as the 16-row operand. Weights NVFP4 (W4A16), FP8 or BF16 in p64 layout, x bf16, y float32. Sums:
// float32, k in the order of units per warp, warps in fixed order: deterministic, a row does not depend on others.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/weight.h"

namespace mettle::cuda {

// A p64 matrix on the device.
struct P64View {
  WeightFormat format = WeightFormat::kNvfp4;
  int rows = 0, cols = 0, tiles = 0, units = 0, unit_tiles = 0;
  const uint8_t* payload = nullptr;
  const float* row_scale = nullptr;  // [tiles * 16]
};

struct LinearMmaArgs {
  P64View weight;
  const uint16_t* x = nullptr;  // [rows, cols] bf16
  float* y = nullptr;           // [rows, weight.rows]
  int rows = 0;
  cudaStream_t stream = nullptr;
  bool dependent = true;  // programmatic dependent launch
};

void linear_w4a16_mma(const LinearMmaArgs& args);
void linear_fp8_mma(const LinearMmaArgs& args);
void linear_bf16_mma(const LinearMmaArgs& args);

}  // namespace mettle::cuda
