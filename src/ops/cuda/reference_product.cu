#include "ops/cuda/reference_product.h"

#include "ops/cuda/device/reference_product.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

// A block: one tile of 16 weight rows against M rows of x. Blocks of one tile lie side by side, so its weights are in
// the cache for all but the first.
template <int M>
__global__ __launch_bounds__(kProductWarps * 32) void product_kernel(p64::Matrix w, const uint16_t* x, float* y,
                                                                     int rows, int groups) {
  __shared__ float out[M * 16];
  const int tile = static_cast<int>(blockIdx.x) / groups, first = static_cast<int>(blockIdx.x) % groups * M;
  const int here = min(M, rows - first);
  block_tile<M>(w, tile, x + int64_t{first} * w.cols, w.cols, here, out);
  for (int i = static_cast<int>(threadIdx.x); i < here * 16; i += kProductWarps * 32) {
    const int row = p64::matrix_row(w, tile * 16 + i % 16);
    if (row < w.rows) y[int64_t{first + i / 16} * w.rows + row] = out[i];
  }
}

template <int M>
void launch_product(const p64::Matrix& w, const uint16_t* x, float* y, int rows, void* stream) {
  const int groups = (rows + M - 1) / M;
  launch({.grid = dim3(static_cast<unsigned>(w.tiles) * static_cast<unsigned>(groups)),
          .block = dim3(kProductWarps * 32),
          .stream = static_cast<cudaStream_t>(stream),
          .dependent = false},
         product_kernel<M>, w, x, y, rows, groups);
}

}  // namespace

void reference_product(const p64::Matrix& w, const uint16_t* x, float* y, int rows, void* stream) {
  if (rows == 0) return;
  if (rows == 1)
    launch_product<1>(w, x, y, rows, stream);
  else if (rows <= 4)
    launch_product<4>(w, x, y, rows, stream);
  else
    launch_product<8>(w, x, y, rows, stream);
}

}  // namespace mettle::cuda
