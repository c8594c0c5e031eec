// What moe_fused_rows_kernel is given and keeps, and its first half: scores of all rows, told to all blocks, and the
// choice that every block makes for itself.
#pragma once
#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/moe_union.cuh"
#include "ops/cuda/device/packets.cuh"
#include "ops/cuda/device/router_pairs.cuh"
#include "ops/cuda/moe_fused_rows.h"

namespace mettle::cuda::fused_rows {

constexpr int kWarps = kFusedRowsWarps, kThreads = 32 * kWarps;
constexpr int kPairs = (kMaxExperts / 16 + 1) * 8;    // of router rows, at most
constexpr int kPieces = kFusedHidden / 4 / kThreads;  // 4 k of two router rows, of a thread
static_assert(kThreads >= kMaxExperts && kWarps >= kFusedRows);

// What the launches of one stream leave each other. All 0 when the module is loaded.
struct State {
  uint32_t launch_number, blocks_ended;  // of the last launch that ended; of this one
  uint32_t blocks_with_h;                // of this one
  Packet scores[kPairs * kFusedRows];
};

struct Fused {
  int rows, hidden, width, experts, top_k, state;
  bool renormalise, given, shared_gate, has_shared;
  int units_gate_up, tiles_gate_up, units_down, tiles_down;
  int router_pairs, score_stride;
  MoeFusedRowsShared lies;
  P64View router;
  const ExpertPointers* pointers;
  ExpertPointers shared;
  const uint16_t* x;
  uint16_t* h;  // [pair][width]
  float* partial;
  int32_t* ids;
  float* weights;
};

// What a block knows of all rows.
template <int ROWS>
struct Shared {
  UnionSlot slot[ROWS * kMaxTopK + 1];
  uint32_t mask[kThreads];  // rows of an expert
  int32_t begin[kThreads];  // pairs before it
  float sums[kWarps][2 * ROWS];
  int32_t id[ROWS * kMaxTopK], pair[ROWS * kMaxTopK];
  float weight[ROWS * kMaxTopK];
  float shared_scale[ROWS];
  uint32_t number;
};

__device__ __forceinline__ void load_router(uint4 (&piece)[kPieces], const P64View& router, int pair, bool ok) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int p = threadIdx.x + i * kThreads;
    piece[i] = router_piece(router, pair, p, ok && p * 4 < router.cols);
  }
}

// Sums of N values over a warp, each in the order of a plain sum: value i to the lanes i * 32 / N and on.
template <int N, int D = 16>
__device__ __forceinline__ float sums_of_warp(float (&v)[N], int lane) {
  float half[N > 1 ? N / 2 : 1];
  if constexpr (N > 1) {
    const bool upper = (lane & D) != 0;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float other = upper ? v[i] : v[i + N / 2], mine = upper ? v[i + N / 2] : v[i];
      half[i] = mine + __shfl_xor_sync(0xffffffffu, other, D);
    }
  } else {
    half[0] = v[0] + __shfl_xor_sync(0xffffffffu, v[0], D);
  }
  if constexpr (D > 1)
    return sums_of_warp<(N > 1 ? N / 2 : 1), D / 2>(half, lane);
  else
    return half[0];
}

// 1: the scores of pair `pair` for all rows of x.
template <int ROWS>
__device__ __forceinline__ void send_scores(const Fused& a, State& state, Shared<ROWS>& s,
                                            const uint4 (&piece)[kPieces], float2 scale, const uint16_t* x, int pair) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sum[2 * ROWS] = {};
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int p = threadIdx.x + i * kThreads;
    if (p * 4 >= a.hidden) break;
    const float2 l0 = both(piece[i].x), h0 = both(piece[i].y), l1 = both(piece[i].z), h1 = both(piece[i].w);
    const uint16_t* at = x + p / 16 * 64 + p % 4 * 16 + p / 4 % 4 * 4;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {  // of a row that is not there nobody takes the sum
      const uint2 k = *reinterpret_cast<const uint2*>(at + r * a.lies.x_stride);
      const float2 x0 = both(k.x), x1 = both(k.y);
      sum[r] = fmaf(l1.y, x1.y, fmaf(l1.x, x1.x, fmaf(l0.y, x0.y, fmaf(l0.x, x0.x, sum[r]))));
      sum[ROWS + r] = fmaf(h1.y, x1.y, fmaf(h1.x, x1.x, fmaf(h0.y, x0.y, fmaf(h0.x, x0.x, sum[ROWS + r]))));
    }
  }
  constexpr int kLanes = 16 / ROWS;  // that have the same sum
  const float mine = sums_of_warp(sum, lane);
  if (lane % kLanes == 0) s.sums[warp][lane / kLanes] = mine;
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x);
  if (row < a.rows) {
    float low = 0, high = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) low += s.sums[w][row], high += s.sums[w][ROWS + row];
    send(&state.scores[pair * ROWS + row], __float_as_uint(low * scale.x), __float_as_uint(high * scale.y), s.number);
  }
}

// 2: ids, weights and masks of all rows, in shared memory; block 0 also writes the choices out.
template <int ROWS, int PER_LANE>
__device__ __forceinline__ void choose(const Fused& a, const State& state, Shared<ROWS>& s, float* scores) {
  constexpr int kAtOnce = 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, packets = a.router_pairs * ROWS;
  for (int first = threadIdx.x; first < packets; first += kAtOnce * kThreads) {
    uint2 score[kAtOnce];
    const auto wanted = [&](int i) { return first + i * kThreads < packets && first % ROWS < a.rows; };
    receive<kAtOnce>(score, state.scores + first, kThreads, s.number, wanted);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int pair = (first + i * kThreads) / ROWS;
      float* to = scores + first % ROWS * a.score_stride + pair / 8 * 16 + pair % 8;
      if (wanted(i)) to[0] = __uint_as_float(score[i].x), to[8] = __uint_as_float(score[i].y);
    }
  }
  __syncthreads();
  if (warp < a.rows) {
    const int at = warp * a.top_k + lane;
    const float* mine = scores + warp * a.score_stride;
    const Choice c = a.given ? given_row(a.ids + warp * a.top_k, a.weights + warp * a.top_k, a.top_k, lane)
                             : choose_row<PER_LANE>(mine, a.experts, a.top_k, a.renormalise, lane);
    if (lane < a.top_k) {
      s.id[at] = c.id, s.weight[at] = c.weight;
      if (c.id >= 0) atomicOr(&s.mask[c.id], 1u << warp);  // -1: padding
      if (!a.given && blockIdx.x == 0) a.ids[at] = c.id, a.weights[at] = c.weight;
    }
    if (lane == 0) s.shared_scale[warp] = a.shared_gate ? sigmoid(mine[a.experts]) : 1.f;
  }
  __syncthreads();
}

}  // namespace mettle::cuda::fused_rows
