// Numbers as pairs of bf16, high and low part, and the fragments of mma.m16n8k16 made of them.
#pragma once
#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/device/gdn_matrices.cuh"
#include "ops/cuda/device/ptx.cuh"

namespace mettle::cuda {

struct Halves {
  uint16_t high, low;
};
__device__ __forceinline__ Halves halves_of(float x) {
  const uint16_t high = to_bf16(x);
  return {high, to_bf16(x - from_bf16(high))};
}

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

// Right operands [16 x 8] of N neighbouring tiles: a load brings a tile as a pair, or the high parts of two tiles.
template <bool PAIRS, int N>
struct Right {
  static constexpr int kLoads = PAIRS ? N : N / 2;
  uint32_t word[kLoads][4];

  // Of a lane: which tile load `i` brings its row for, and how many parts of `elements` that row lies behind.
  static __device__ __forceinline__ int tile(int i, int lane) { return PAIRS ? i : 2 * i + lane / 16; }
  static __device__ __forceinline__ int part(int elements, int lane) { return PAIRS ? lane / 16 * elements : 0; }
  __device__ __forceinline__ const uint32_t* high(int n) const { return PAIRS ? word[n] : word[n / 2] + n % 2 * 2; }
  __device__ __forceinline__ const uint32_t* low(int n) const { return word[n] + 2; }
};

// The small products first and tile by tile, so that a sum is not asked for again at once.
template <bool PAIRS, int N>
__device__ __forceinline__ void multiply_pairs(float (*sum)[4], const LeftPair& left, const Right<PAIRS, N>& right) {
  if constexpr (PAIRS) {
#pragma unroll
    for (int n = 0; n < N; ++n) ptx::mma_16816(sum[n], left.low, right.high(n)[0], right.high(n)[1]);
#pragma unroll
    for (int n = 0; n < N; ++n) ptx::mma_16816(sum[n], left.high, right.low(n)[0], right.low(n)[1]);
  }
#pragma unroll
  for (int n = 0; n < N; ++n) ptx::mma_16816(sum[n], left.high, right.high(n)[0], right.high(n)[1]);
}

}  // namespace mettle::cuda
