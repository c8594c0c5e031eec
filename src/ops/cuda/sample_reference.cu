#include "ops/cuda/device/sample_row.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

__global__ __launch_bounds__(1024) void sample_reference_kernel(SampleLaunch a) {
  const DeviceSampleRow p = a.sample.rows[blockIdx.x];
  adjust_row(a, blockIdx.x, p);
  sample_row_plain(a, blockIdx.x, p);
}

}  // namespace

void sample_reference(const SampleLaunch& a, CUstream_st* stream) {
  if (a.rows == 0) return;
  launch({.grid = dim3(a.rows), .block = dim3(1024), .stream = stream, .dependent = false}, sample_reference_kernel, a);
}

}  // namespace mettle::cuda
