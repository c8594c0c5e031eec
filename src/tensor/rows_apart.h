// How far two tensors are apart, row by row, and a hash of each row's bits. For proofs that hold one run beside
// another.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace mettle {

struct RowApart {
  double difference = 0, norm = 0;  // square roots of sums of squares; norm: of the row of `need`
  // The largest |have - need| / (|need| + root mean square of need's row), and its column.
  double element = 0;
  int64_t column = 0;
  uint64_t bits = 0;   // of have's row
  bool finite = true;  // else column is the first value that is not: in either row, and not with the same bits in both
};

// [rows, cols] of f32, bf16 or e4m3; elements with the same bits are equal, NaN included. out: [rows].
void rows_apart(const void* have, const void* need, DType dtype, int64_t rows, int64_t cols, RowApart* out);

namespace gpu {
// The same, enqueued; `out` lies in memory that the device writes (Place::take_shared).
void rows_apart(const void* have, const void* need, DType dtype, int64_t rows, int64_t cols, RowApart* out,
                void* stream);
}  // namespace gpu

}  // namespace mettle
