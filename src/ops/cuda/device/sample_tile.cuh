// How sample's radix kernels read a row: tiles of 4096 logits, sixteen in each thread's registers, ids ascending.
#pragma once
#include "ops/cuda/device/sample_row.cuh"

namespace mettle::cuda {

constexpr int kTileThreads = 32 * kSampleWarps, kPerThread = kSampleTile / kTileThreads;

// VECTOR: rows are 16-byte aligned.
template <bool VECTOR>
struct SampleTile {
  float v[kPerThread];  // -infinity beyond the end

  static __device__ __forceinline__ int id(int base, int j) {
    return VECTOR ? base + j / 4 * 4 * kTileThreads + 4 * static_cast<int>(threadIdx.x) + j % 4
                  : base + j * kTileThreads + static_cast<int>(threadIdx.x);
  }
  __device__ __forceinline__ void load(const float* raw, int base, int end) {
    if constexpr (VECTOR) {
      float4 q[kPerThread / 4];
#pragma unroll
      for (int i = 0; i < kPerThread / 4; ++i)
        q[i] = id(base, 4 * i) < end ? *reinterpret_cast<const float4*>(raw + id(base, 4 * i))
                                     : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
#pragma unroll
      for (int i = 0; i < kPerThread / 4; ++i)
        v[4 * i] = q[i].x, v[4 * i + 1] = q[i].y, v[4 * i + 2] = q[i].z, v[4 * i + 3] = q[i].w;
      if (base + kSampleTile > end) {
#pragma unroll
        for (int j = 0; j < kPerThread; ++j)
          if (id(base, j) >= end) v[j] = -INFINITY;
      }
    } else {
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) v[j] = id(base, j) < end ? raw[id(base, j)] : -INFINITY;
    }
  }
};

// f(id, raw logit, adjusted logit) for every id of [begin, end).
template <bool VECTOR, class F>
__device__ __forceinline__ void each_token(const RowLogits& logits, int begin, int end, F f) {
  for (int base = begin; base < end; base += kSampleTile) {
    SampleTile<VECTOR> tile;
    tile.load(logits.raw, base, end);
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int id = tile.id(base, j);
      if (id < end) f(id, tile.v[j], logits.adjusted(id, tile.v[j]));
    }
  }
}

// True in all threads of the block of a row that comes last; what the others wrote is then visible.
__device__ __forceinline__ bool last_block(uint32_t* ticket) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(ticket, 1u) == gridDim.x - 1;
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// Distance from the best token in bins, 96 to a factor of e of weight; those from 21 such factors on share the last.
constexpr float kBinsPerFactor = 96;
__device__ __forceinline__ int bin_of(float v, float top, float bins_per_logit) {
  const float at = __fmul_rn(__fsub_rn(top, v), bins_per_logit);
  return at < kSampleBins - 1 ? static_cast<int>(at) : kSampleBins - 1;
}
__device__ __forceinline__ float bins_per_logit_of(float per_temperature) { return kBinsPerFactor * per_temperature; }

}  // namespace mettle::cuda
