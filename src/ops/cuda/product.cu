// See product.h.
#include "ops/cuda/product.h"

#include "ops/cuda/linear_mma.h"

namespace mettle::cuda {

void product(const PackedMatrix& w, const uint16_t* x, int rows, float* y, CUstream_st* stream) {
  linear_mma({.weight = view_of(w), .x = x, .y = y, .rows = rows, .stream = stream});
}

}  // namespace mettle::cuda
