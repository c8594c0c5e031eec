// Numbers as pairs of bf16, high and low part, and the fragments of mma.m16n8k16 made of them.
#pragma once
#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/device/gdn_matrices.cuh"
#include "ops/cuda/device/ptx.cuh"

namespace mettle::cuda {

// Two neighbours of a row, the first in the lower half of a word.
__device__ __forceinline__ void split_pair(float x, float y, uint32_t& high, uint32_t& low) {
  high = ptx::pack_bf16(x, y);
  low = ptx::pack_bf16(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xFFFF0000u));
}

// Left operand [16 x 16], out of two neighbouring tiles [16 x 8] as a product leaves them: what stands in a column of
// the sum stands in the same lanes as an operand's.
struct LeftPair {
  uint32_t high[4], low[4];
  __device__ __forceinline__ void take(const float (&first)[4], const float (&second)[4]) {
    split_pair(first[0], first[1], high[0], low[0]);
    split_pair(first[2], first[3], high[1], low[1]);
    split_pair(second[0], second[1], high[2], low[2]);
    split_pair(second[2], second[3], high[3], low[3]);
  }
};

// Right operands [16 x 8] of N tiles: high part in words 0 and 1, low part in 2 and 3. The small products first and
// tile by tile, so that a sum is not asked for again at once.
template <int N>
__device__ __forceinline__ void multiply_pairs(float (*sum)[4], const LeftPair& left, const uint32_t (&right)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n) ptx::mma_16816(sum[n], left.low, right[n][0], right[n][1]);
#pragma unroll
  for (int n = 0; n < N; ++n) ptx::mma_16816(sum[n], left.high, right[n][2], right[n][3]);
#pragma unroll
  for (int n = 0; n < N; ++n) ptx::mma_16816(sum[n], left.high, right[n][0], right[n][1]);
}

}  // namespace mettle::cuda
