// embed: one bf16 row of the table widened per token.
#include "ops/cuda/embed_reference.h"

#include <algorithm>

#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kThreads = 128;

// Blocks of one row stand side by side in x. VECTOR: 8 values a thread at a time, rows are 16-byte aligned.
template <bool VECTOR>
__global__ __launch_bounds__(kThreads) void embed_kernel(const int32_t* ids, const uint16_t* table, float* residual,
                                                         int hidden) {
  ptx::trigger();
  ptx::wait();
  const int row = blockIdx.y;
  const uint16_t* from = table + int64_t{ids[row]} * hidden;
  float* to = residual + int64_t{row} * hidden;
  const int first = blockIdx.x * kThreads + threadIdx.x, step = gridDim.x * kThreads;
  if constexpr (VECTOR) {
    for (int i = first; i < hidden / 8; i += step) {
      const uint4 v = reinterpret_cast<const uint4*>(from)[i];
      float4 pair[2];
      pair[0] = make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000u), __uint_as_float(v.y << 16),
                            __uint_as_float(v.y & 0xFFFF0000u));
      pair[1] = make_float4(__uint_as_float(v.z << 16), __uint_as_float(v.z & 0xFFFF0000u), __uint_as_float(v.w << 16),
                            __uint_as_float(v.w & 0xFFFF0000u));
      reinterpret_cast<float4*>(to)[2 * i] = pair[0];
      reinterpret_cast<float4*>(to)[2 * i + 1] = pair[1];
    }
  } else {
    for (int i = first; i < hidden; i += step) to[i] = from_bf16(from[i]);
  }
}

}  // namespace

void embed(const EmbedArgs& a, CUstream_st* stream) {
  const int hidden = a.problem.hidden;
  const bool vector = hidden % 8 == 0;
  const int items = vector ? hidden / 8 : hidden;
  // What stands before it is a copy of the ids, not a kernel: nothing to overlap with.
  for (int done = 0; done < a.rows; done += 65535) {
    const int rows = std::min(65535, a.rows - done);
    launch({.grid = dim3((items + kThreads - 1) / kThreads, rows),
            .block = dim3(kThreads),
            .stream = stream,
            .dependent = false},
           vector ? embed_kernel<true> : embed_kernel<false>, a.device_ids + done, a.table.as<uint16_t>(),
           a.residual.as<float>() + int64_t{done} * hidden, hidden);
  }
}

}  // namespace mettle::cuda
