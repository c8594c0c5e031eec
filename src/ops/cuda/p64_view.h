// A p64 matrix as kernels take it: by value.
#pragma once
#include <cstdint>

#include "ops/packed.h"

namespace mettle::cuda {

struct P64View {
  WeightFormat format = WeightFormat::kNvfp4;
  int rows = 0, cols = 0, tiles = 0, units = 0, unit_tiles = 0;
  const uint8_t* payload = nullptr;
  const float* row_scale = nullptr;  // [tiles * 16]
};

inline P64View view_of(const PackedMatrix& m) {
  return {m.format,
          static_cast<int>(m.rows),
          static_cast<int>(m.cols),
          static_cast<int>(m.tiles),
          m.units,
          m.unit_tiles,
          m.data,
          m.row_scale};
}

}  // namespace mettle::cuda
