// join: residual += partials in rank order; x = residual * rsqrt(mean of squares + eps) * weight, rounded once.
#include "ops/cuda/join_kernels.h"

#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

struct Partials {
  const float* rank[kJoinRanks] = {};
};

Partials partials_of(const JoinArgs& a) {
  Partials p;
  for (size_t r = 0; r < a.partials.size(); ++r) p.rank[r] = a.partials[r];
  return p;
}

// The sum of the block's threads in every thread, in fixed order. The block is a multiple of 32 threads.
__device__ float block_sum(float v) {
  __shared__ float of_warp[32];
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) sum += of_warp[w];
  return sum;
}

__device__ __forceinline__ float root(float sum, int hidden, float eps) {
  return 1.f / sqrtf(sum / static_cast<float>(hidden) + eps);
}

__global__ __launch_bounds__(256) void join_reference_kernel(float* residual, Partials partials, int ranks,
                                                             const float* weight, uint16_t* x, int hidden, float eps,
                                                             bool plus_one) {
  residual += int64_t{blockIdx.x} * hidden;
  x += int64_t{blockIdx.x} * hidden;
  float squares = 0;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    float v = residual[i];
#pragma unroll
    for (int r = 0; r < kJoinRanks; ++r)
      if (r < ranks) v += partials.rank[r][int64_t{blockIdx.x} * hidden + i];
    residual[i] = v;
    squares += v * v;
  }
  const float scale = root(block_sum(squares), hidden, eps);
  for (int i = threadIdx.x; i < hidden; i += blockDim.x)
    x[i] = to_bf16(residual[i] * scale * (plus_one ? 1.f + weight[i] : weight[i]));
}

// Thread t holds the float4 t, t + threads, ... of the row.
template <int PER_THREAD>
__global__ __launch_bounds__(1024) void join_fused_kernel(float* residual, Partials partials, int ranks,
                                                          const float* weight, uint16_t* x, int hidden, float eps,
                                                          bool plus_one) {
  const int count = hidden / 4;
  float4 v[PER_THREAD], w[PER_THREAD];
  ptx::trigger();
  // Nobody writes the weight once it is placed.
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    w[i] = at < count ? reinterpret_cast<const float4*>(weight)[at] : float4{};
    if (plus_one) w[i].x += 1.f, w[i].y += 1.f, w[i].z += 1.f, w[i].w += 1.f;
  }
  ptx::wait();
  const int64_t row = int64_t{blockIdx.x} * count;
  auto* out = reinterpret_cast<float4*>(residual) + row;
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    v[i] = at < count ? out[at] : float4{};
  }
#pragma unroll
  for (int r = 0; r < kJoinRanks; ++r) {
    if (r == ranks) break;
    const float4* partial = reinterpret_cast<const float4*>(partials.rank[r]) + row;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
      const int at = threadIdx.x + i * blockDim.x;
      if (at >= count) continue;
      const float4 p = partial[at];
      v[i].x += p.x, v[i].y += p.y, v[i].z += p.z, v[i].w += p.w;
    }
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (ranks > 0 && at < count) out[at] = v[i];
    squares += v[i].x * v[i].x + v[i].y * v[i].y + (v[i].z * v[i].z + v[i].w * v[i].w);
  }
  const float scale = root(block_sum(squares), hidden, eps);
#pragma unroll
  for (int i = 0; i < PER_THREAD; ++i) {
    const int at = threadIdx.x + i * blockDim.x;
    if (at >= count) continue;
    const uint32_t low = to_bf16(v[i].x * scale * w[i].x) | uint32_t{to_bf16(v[i].y * scale * w[i].y)} << 16;
    const uint32_t high = to_bf16(v[i].z * scale * w[i].z) | uint32_t{to_bf16(v[i].w * scale * w[i].w)} << 16;
    reinterpret_cast<uint2*>(x)[row + at] = make_uint2(low, high);
  }
}

template <class Kernel>
void launch_rows(const JoinArgs& a, int threads, bool dependent, Kernel kernel, CUstream_st* stream) {
  if (a.rows == 0) return;
  launch({.grid = dim3(a.rows), .block = dim3(threads), .stream = stream, .dependent = dependent}, kernel,
         a.residual.as<float>(), partials_of(a), a.problem.ranks, a.weight, a.x.as<uint16_t>(), a.problem.hidden,
         a.problem.eps, a.problem.plus_one);
}

}  // namespace

void join_reference(const JoinArgs& a, CUstream_st* stream) {
  launch_rows(a, 256, false, join_reference_kernel, stream);
}

void join_fused(const JoinArgs& a, CUstream_st* stream) {
  const int count = a.problem.hidden / 4, per_thread = count <= 512 ? 1 : count <= 2048 ? 2 : 4;
  const int threads = ((count + per_thread - 1) / per_thread + 31) / 32 * 32;
  if (per_thread == 1)
    launch_rows(a, threads, true, join_fused_kernel<1>, stream);
  else if (per_thread == 2)
    launch_rows(a, threads, true, join_fused_kernel<2>, stream);
  else
    launch_rows(a, threads, true, join_fused_kernel<4>, stream);
}

}  // namespace mettle::cuda
