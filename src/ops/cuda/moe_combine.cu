// See moe_combine.h.
#include "ops/cuda/moe_combine.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

__global__ __launch_bounds__(256) void moe_swiglu_kernel(const float* gate_up, int64_t count, int width, uint16_t* h) {
  ptx::trigger();
  ptx::wait();
  const int64_t step = int64_t{gridDim.x} * 256;
  for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < count; i += step) {
    const int64_t row = i / width, c = i - row * width;
    const float* at = gate_up + row * 2 * width + c / 8 * 16 + c % 8;
    h[i] = __bfloat16_as_ushort(__float2bfloat16_rn(silu(at[0]) * at[8]));
  }
}

constexpr int kCombineThreads = 128;

// blockIdx: outputs, one or four side by side a thread; row. Not told how many blocks are to share a multiprocessor,
// ptxas makes do with 32 registers and asks for a row's products two by two.
template <class T>
__global__ __launch_bounds__(kCombineThreads, 8) void moe_combine_kernel(MoeCombineArgs a) {
  const int m = blockIdx.y, r = blockIdx.x * kCombineThreads + threadIdx.x, width = a.hidden * 4 / sizeof(T);
  ptx::trigger();
  ptx::wait();
  const int64_t first = int64_t{m} * a.top_k;
  const Combination c = {a.weights + first, a.position + first, a.top_k, a.has_shared ? a.rows * a.top_k + m : -1,
                         a.shared_scale[m]};
  const T sum = combine(c, reinterpret_cast<const T*>(a.products) + min(r, width - 1), width);
  if (r < width) reinterpret_cast<T*>(a.partial)[int64_t{m} * width + r] = sum;
}

template <class T>
void combine_in(const MoeCombineArgs& a, CUstream_st* stream) {
  const int64_t width = a.hidden * 4 / static_cast<int64_t>(sizeof(T));
  const dim3 grid(static_cast<unsigned>((width + kCombineThreads - 1) / kCombineThreads),
                  static_cast<unsigned>(a.rows));
  launch({.grid = grid, .block = dim3(kCombineThreads), .stream = stream}, moe_combine_kernel<T>, a);
}

}  // namespace

void moe_swiglu(const float* gate_up, int rows, int width, uint16_t* h, CUstream_st* stream) {
  const int64_t count = int64_t{rows} * width;
  const auto grid = static_cast<unsigned>(std::min<int64_t>((count + 255) / 256, 4096));
  launch({.grid = dim3(grid), .block = dim3(256), .stream = stream}, moe_swiglu_kernel, gate_up, count, width, h);
}

void moe_combine(const MoeCombineArgs& a, CUstream_st* stream) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % sizeof(float4) == 0; };
  if (a.hidden % 4 == 0 && aligned(a.products) && aligned(a.partial)) return combine_in<float4>(a, stream);
  combine_in<float>(a, stream);
}

}  // namespace mettle::cuda
