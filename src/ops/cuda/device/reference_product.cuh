// Products of bf16 rows with a p64 matrix in plain float32: what the reference kernels share. The order of every sum
// depends on the number of columns alone, so a row's result does not depend on the rows beside it.
#pragma once
#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/device/p64_element.cuh"

namespace mettle::cuda {

// Sums of one warp over the k tiles first, first + step, ...: packed rows g and g + 8 of the tile against M rows of x
// (`stride` apart; `rows` of them are there). Afterwards the four lanes of a g hold the same sums.
template <int M>
struct TileSums {
  float of[2][M];
};
template <int M>
__device__ __forceinline__ TileSums<M> tile_sums(const p64::Matrix& m, int tile, int first, int step, const uint16_t* x,
                                                 int64_t stride, int rows, int lane) {
  TileSums<M> sums = {};
  const int g = lane % 4;
  for (int k_tile = first; k_tile * 64 < m.cols; k_tile += step) {
    const int k = k_tile * 64 + 16 * g;
    if (k >= m.cols) continue;  // columns come in multiples of 16
    const p64::LaneWeights weights = p64::lane_weights(m, tile, k_tile, lane);
#pragma unroll
    for (int r = 0; r < M; ++r) {
      if (r >= rows) continue;
      const auto* from = reinterpret_cast<const uint4*>(x + r * stride + k);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 v = from[half];
        const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float value = p64::half_of(pairs[i / 2], i % 2);
#pragma unroll
          for (int q = 0; q < 2; ++q) sums.of[q][r] = fmaf(value, weights.w[q][8 * half + i], sums.of[q][r]);
        }
      }
    }
  }
#pragma unroll
  for (int q = 0; q < 2; ++q)
#pragma unroll
    for (int r = 0; r < M; ++r) {
      sums.of[q][r] += __shfl_xor_sync(kAllLanes, sums.of[q][r], 1);
      sums.of[q][r] += __shfl_xor_sync(kAllLanes, sums.of[q][r], 2);
    }
  return sums;
}

inline constexpr int kProductWarps = 8;  // of a block; they share the k of one tile

// One tile by a whole block: out[r * 16 + packed row] in shared memory, row scale applied; complete when it returns.
template <int M>
__device__ __forceinline__ void block_tile(const p64::Matrix& m, int tile, const uint16_t* x, int64_t stride, int rows,
                                           float* out) {
  __shared__ float parts[kProductWarps][M * 16];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const TileSums<M> sums = tile_sums<M>(m, tile, warp, kProductWarps, x, stride, rows, lane);
  if (lane % 4 == 0)
#pragma unroll
    for (int r = 0; r < M; ++r) {
      parts[warp][r * 16 + lane / 4] = sums.of[0][r];
      parts[warp][r * 16 + lane / 4 + 8] = sums.of[1][r];
    }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < M * 16; i += kProductWarps * 32) {
    float sum = 0;
    for (int w = 0; w < kProductWarps; ++w) sum += parts[w][i];
    out[i] = sum * m.row_scale[tile * 16 + i % 16];
  }
  __syncthreads();
}

}  // namespace mettle::cuda
