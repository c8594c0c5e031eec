// The experts that a few rows chose between them, made by a block for itself out of the rows' masks: a slot each, in
// the order of the experts, then the shared expert's. A slot's rows are its columns; the pairs (slot, column) of all
// slots are counted through.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/moe.h"

namespace mettle::cuda {

struct UnionSlot {
  const uint8_t* gate_up;
  const float* gate_up_scale;
  const uint8_t* down;
  const float* down_scale;
  uint64_t columns;      // 4 bits each: row of column 0, 1, ...; behind the last one that of the first again
  int32_t begin, count;  // pairs before it; columns
};

__device__ __forceinline__ int row_of(uint64_t columns, int column) {
  return static_cast<int>(columns >> (4 * column) & 15);
}
__device__ __forceinline__ uint64_t columns_of(uint32_t mask) {
  const auto first = static_cast<uint64_t>(__ffs(static_cast<int>(mask)) - 1);
  uint64_t columns = first * 0x1111111111111111u;
  for (int n = 0; mask != 0; ++n, mask &= mask - 1)
    columns ^= (first ^ static_cast<uint64_t>(__ffs(static_cast<int>(mask)) - 1)) << (4 * n);
  return columns;
}
__device__ __forceinline__ UnionSlot union_slot(const ExpertPointers& w, uint32_t mask, int begin) {
  return {w.gate_up, w.gate_up_scale, w.down, w.down_scale, columns_of(mask), begin, __popc(mask)};
}

// By all threads of a block of 32 WARPS, thread e for expert e, whose rows are the bits of `mask`. begin[e]: pairs
// before expert e. `slots` gets them, and one more for the shared expert where `shared_mask` is not 0. Returns their
// number.
template <int WARPS>
__device__ __forceinline__ int make_union(UnionSlot* slots, int32_t* begin, uint32_t mask,
                                          const ExpertPointers& weights, uint32_t shared_mask,
                                          const ExpertPointers& shared) {
  __shared__ uint32_t of_warp[WARPS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t mine = (mask != 0 ? 1u << 16 : 0u) + static_cast<uint32_t>(__popc(mask));  // slots, pairs
  uint32_t to_here = mine;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const uint32_t before = __shfl_up_sync(0xffffffffu, to_here, d);
    if (lane >= d) to_here += before;
  }
  if (lane == 31) of_warp[warp] = to_here;
  __syncthreads();
  uint32_t before = to_here - mine, all = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    if (w < warp) before += of_warp[w];
    all += of_warp[w];
  }
  const auto pairs = static_cast<int>(before & 0xffffu);
  begin[threadIdx.x] = pairs;
  if (mask != 0) slots[before >> 16] = union_slot(weights, mask, pairs);
  const auto chosen = static_cast<int>(all >> 16);
  if (shared_mask == 0) return chosen;
  if (threadIdx.x == 0) slots[chosen] = union_slot(shared, shared_mask, static_cast<int>(all & 0xffffu));
  return chosen + 1;
}

}  // namespace mettle::cuda
