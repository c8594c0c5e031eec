// y = x W^T on a GPU in plain float32, for every op's reference: x bf16, W p64.
#pragma once
#include <cstdint>

#include "ops/cuda/device/p64_element.cuh"
#include "ops/packed.h"

namespace mettle::cuda {

inline p64::Matrix matrix_of(const PackedMatrix& m) {
  return {.format = m.format,
          .gate_up = m.order == RowOrder::kGateUp,
          .rows = static_cast<int>(m.rows),
          .cols = static_cast<int>(m.cols),
          .tiles = static_cast<int>(m.tiles),
          .units = m.units,
          .unit_tiles = m.unit_tiles,
          .unit_bytes = m.unit_bytes,
          .data = m.data,
          .row_scale = m.row_scale};
}

// x [rows, w.cols], y [rows, w.rows]; `stream` is a cudaStream_t. Up to eight rows share one reading of the weights.
void reference_product(const p64::Matrix& w, const uint16_t* x, float* y, int rows, void* stream);

}  // namespace mettle::cuda
