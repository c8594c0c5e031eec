#include "ops/cuda/take_ids.h"

#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

__global__ void take_ids_kernel(int32_t* ids, const SampleResult* results, int rows) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < rows) ids[row] = max(results[ids[row]].token, 0);
}

}  // namespace

// Not dependent: what comes after it reads the ids without a wait of its own.
void take_ids(int32_t* ids, const SampleResult* results, int rows, void* stream) {
  if (rows == 0) return;
  launch({.grid = dim3(static_cast<unsigned>((rows + 127) / 128)),
          .block = dim3(128),
          .stream = static_cast<cudaStream_t>(stream),
          .dependent = false},
         take_ids_kernel, ids, results, rows);
}

}  // namespace mettle::cuda
