// What the packers of the layouts share with packed.cpp.
#pragma once
#include "ops/packed.h"

namespace mettle {

// Memory for one matrix. Small ones share pieces of 32 MiB: an expert has a few hundred KiB, and reading many of those
// on 4 KiB pages costs a third of the bandwidth. A piece lives as long as a matrix in it.
struct PackedStorage {
  std::shared_ptr<const Buffer> owner;
  uint8_t* data = nullptr;
};
PackedStorage storage_for(size_t bytes);

size_t packed_bytes_p64(WeightFormat format, int64_t rows, int64_t cols);
int64_t packed_row_p64(const PackedMatrix& m, int64_t row);
float element_p64(const PackedMatrix& m, int64_t row, int64_t col);

}  // namespace mettle
