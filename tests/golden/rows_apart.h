// How far two tensors of a GPU are apart, row by row.
#pragma once
#include <cstdint>
#include <vector>

#include "tensor/dtype.h"

namespace mettle::testing {

struct RowApart {
  double difference = 0, norm = 0;  // square roots of sums of squares; norm: of the second tensor
  bool finite = true;               // both
};

// [rows, cols] of f32 or bf16 in device memory, behind what is on the stream (a cudaStream_t), for which it waits.
std::vector<RowApart> rows_apart(const void* have, const void* need, DType dtype, int64_t rows, int64_t cols,
                                 void* stream);
// Device memory to host memory, likewise.
void read_device(void* to, const void* from, size_t bytes, void* stream);

}  // namespace mettle::testing
