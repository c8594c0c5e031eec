#include "tensor/rows_apart.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tensor/rows_apart_element.h"

namespace mettle {
namespace {

template <class Bits>
RowApart row_apart(const Bits* have, const Bits* need, int64_t cols) {
  RowApart row;
  double difference = 0, norm = 0;
  for (int64_t c = 0; c < cols; ++c) {
    row.bits += apart::hash(have[c], c);
    const float a = apart::value(have[c]), b = apart::value(need[c]);
    if (!apart::finite(a) || !apart::finite(b)) {
      if (have[c] == need[c]) continue;
      if (row.finite) row.column = c;
      row.finite = false;
      continue;
    }
    difference += (double{a} - double{b}) * (double{a} - double{b});
    norm += double{b} * double{b};
  }
  row.difference = std::sqrt(difference);
  row.norm = std::sqrt(norm);
  if (!row.finite) return row;
  const double rms = std::sqrt(norm / static_cast<double>(cols));
  for (int64_t c = 0; c < cols; ++c) {
    if (have[c] == need[c]) continue;
    const double a = double{apart::value(have[c])}, b = double{apart::value(need[c])};
    const double element = a == b ? 0 : std::fabs(a - b) / (std::fabs(b) + rms);
    if (element > row.element) row.element = element, row.column = c;
  }
  return row;
}

template <class Bits>
void all_apart(const void* have, const void* need, int64_t rows, int64_t cols, RowApart* out) {
  for (int64_t r = 0; r < rows; ++r)
    out[r] = row_apart(static_cast<const Bits*>(have) + r * cols, static_cast<const Bits*>(need) + r * cols, cols);
}

}  // namespace

void rows_apart(const void* have, const void* need, DType dtype, int64_t rows, int64_t cols, RowApart* out) {
  switch (dtype) {
    case DType::kF32:
      return all_apart<uint32_t>(have, need, rows, cols, out);
    case DType::kBF16:
      return all_apart<uint16_t>(have, need, rows, cols, out);
    case DType::kE4M3:
      return all_apart<uint8_t>(have, need, rows, cols, out);
    default:
      fail(Code::kInternal, "rows_apart of another dtype");
  }
}

#if !METTLE_CUDA
void gpu::rows_apart(const void*, const void*, DType, int64_t, int64_t, RowApart*, void*) {
  fail(Code::kDevice, "rows_apart: this program was built without CUDA");
}
#endif

}  // namespace mettle
