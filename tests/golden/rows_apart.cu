#include "rows_apart.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "base/error.h"
#include "tensor/gpu_check.h"

namespace mettle::testing {
namespace {

constexpr int kThreads = 256;

__device__ float value(const float* p, int64_t i) { return p[i]; }
__device__ float value(const __nv_bfloat16* p, int64_t i) { return __bfloat162float(p[i]); }

template <class T>
__global__ __launch_bounds__(kThreads) void rows_apart_kernel(const T* have, const T* need, int64_t cols,
                                                              RowApart* out) {
  __shared__ double sums[2][kThreads];
  const int64_t first = int64_t{blockIdx.x} * cols;
  const int tid = static_cast<int>(threadIdx.x);
  double difference = 0, norm = 0;
  for (int64_t i = tid; i < cols; i += kThreads) {
    const double a = value(have, first + i), b = value(need, first + i);
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  sums[0][tid] = difference;
  sums[1][tid] = norm;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (tid < half) sums[0][tid] += sums[0][tid + half], sums[1][tid] += sums[1][tid + half];
  }
  if (tid > 0) return;
  out[blockIdx.x].difference = sqrt(sums[0][0]);
  out[blockIdx.x].norm = sqrt(sums[1][0]);
  out[blockIdx.x].finite = isfinite(sums[0][0]) && isfinite(sums[1][0]);
}

}  // namespace

std::vector<RowApart> rows_apart(const void* have, const void* need, DType dtype, int64_t rows, int64_t cols,
                                 void* stream) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "rows of another dtype");
  static RowApart* device = nullptr;
  static int64_t room = 0;
  if (rows > room) {
    CUDA_CHECK(cudaFree(device));
    CUDA_CHECK(cudaMalloc(&device, static_cast<size_t>(rows) * sizeof(RowApart)));
    room = rows;
  }
  const auto on = static_cast<cudaStream_t>(stream);
  std::vector<RowApart> apart(static_cast<size_t>(rows));
  if (rows == 0) return apart;
  const auto blocks = static_cast<unsigned>(rows);
  if (dtype == DType::kF32)
    rows_apart_kernel<<<blocks, kThreads, 0, on>>>(static_cast<const float*>(have), static_cast<const float*>(need),
                                                   cols, device);
  else
    rows_apart_kernel<<<blocks, kThreads, 0, on>>>(static_cast<const __nv_bfloat16*>(have),
                                                   static_cast<const __nv_bfloat16*>(need), cols, device);
  CUDA_CHECK(cudaGetLastError());
  read_device(apart.data(), device, apart.size() * sizeof(RowApart), stream);
  return apart;
}

void read_device(void* to, const void* from, size_t bytes, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, on));
  CUDA_CHECK(cudaStreamSynchronize(on));
}

}  // namespace mettle::testing
