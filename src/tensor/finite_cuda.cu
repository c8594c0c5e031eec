#include "base/error.h"
#include "tensor/gpu_check.h"
#include "tensor/finite.h"

namespace mettle::gpu {
namespace {

// One block a row; launches of a stream follow each other, so a mark has one writer at a time.
template <class Bits, unsigned kExponent>
__global__ void mark_kernel(const Bits* values, int64_t width, const int32_t* rows, int32_t mark, int32_t* marks) {
  const Bits* row = values + blockIdx.x * width;
  bool bad = false;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) bad |= (row[i] & kExponent) == kExponent;
  if (__syncthreads_or(bad) == 0 || threadIdx.x != 0) return;
  int32_t& at = marks[rows == nullptr ? blockIdx.x : rows[blockIdx.x]];
  if (at > mark) at = mark;
}

}  // namespace

void mark_not_finite(const TensorView& values, const int32_t* rows, int32_t mark, int32_t* marks, void* stream) {
  CHECK(values.dtype == DType::kF32 || values.dtype == DType::kBF16, "mark_not_finite of another dtype");
  const int64_t n = values.shape[0];
  if (n == 0) return;
  const int64_t width = values.shape.elements() / n;
  auto* on = static_cast<cudaStream_t>(stream);
  const auto blocks = static_cast<unsigned>(n);
  constexpr unsigned kThreads = 256;
  if (values.dtype == DType::kF32)
    mark_kernel<uint32_t, 0x7f800000><<<blocks, kThreads, 0, on>>>(values.as<uint32_t>(), width, rows, mark, marks);
  else
    mark_kernel<uint16_t, 0x7f80><<<blocks, kThreads, 0, on>>>(values.as<uint16_t>(), width, rows, mark, marks);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace mettle::gpu
