// The kernel behind wgmma_tiles_{nvfp4,fp8,bf16}: persistent blocks, each taking one piece of work (128 rows of
// weights, N rows of x) after the other. One warpgroup brings rows of x, two multiply: each of their 8 warps streams
// one tile row of weights through a ring of its own (bulk copies of whole units) and decodes it to the A operand in
// registers, one 64 k ahead of the tensor cores.
#pragma once
#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/tile_formats.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/wgmma_tiles.h"
#include "tensor/gpu_check.h"

namespace mettle::cuda {
namespace tiles {

constexpr int kWarps = 8, kSlots = 2;  // that multiply; units in the ring of each

template <class W, int N>
struct WgmmaShape {
  static constexpr int kStage = N * 128;  // 64 k of N rows of x
  static constexpr int kStages = N == 256 ? 4 : N == 128 ? 6 : 8;
  static constexpr int kRing = kSlots * W::kUnit;
  // Of the 168 registers a thread that the launch gets, few rows leave more to who brings x: with 64 rows the time of
  // a load counts, not the products.
  static constexpr int kBringRegisters = N == 64 ? 200 : 96, kMultiplyRegisters = N == 64 ? 152 : 200;
  static_assert(128 * kBringRegisters + 256 * kMultiplyRegisters <= 384 * 168);
  static constexpr int kBytes = kStages * kStage + kWarps * kRing + 1024;  // 1024: to align the stages
};

struct WgmmaArgs {
  P64View weight;
  const uint16_t* x;
  int rows;
  const RowGroup* group;
  const int32_t* groups;
  const int32_t* row_of;
  float* y;
  uint16_t* h;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct Work {
  int block, first, count;  // 128 rows of weights; positions
  const uint8_t* payload;
  const float* row_scale;
};
// Neighbours share rows of x where there are groups, weights where there are none.
template <int N>
__device__ __forceinline__ Work work_at(const WgmmaArgs& a, int item, int blocks) {
  if (a.group == nullptr) {
    const int parts = (a.rows + N - 1) / N, block = item / parts, first = (item - block * parts) * N;
    return {block, first, min(N, a.rows - first), a.weight.payload, a.weight.row_scale};
  }
  const int part = item / blocks;
  const RowGroup& g = a.group[part];
  return {item - part * blocks, g.first, g.count, a.h != nullptr ? g.weights.gate_up : g.weights.down,
          a.h != nullptr ? g.weights.gate_up_scale : g.weights.down_scale};
}

// Brings x, 64 k at a time, in the order of the A operand: in a tile of 64 k lane position t of step j multiplies
// k = 16 t + 4 j + {0, 1, 2, 3} and the k of a k16 step lie t by t, so chunk 2 j + {0, 1} of a row holds the pairs
// 4 j + {0, 1} + {0, 2} of all four t. A thread takes half of a row's 64 k: 4 loads of 16 bytes (one per t) become 4
// chunks (two j) by exchanging registers. Four such tasks are in flight, eight with 64 rows.
template <int N>
__device__ __forceinline__ void bring_rows(const WgmmaArgs& a, uint8_t* stages, uint64_t* full, uint64_t* empty,
                                           int stage_count, int items, int blocks) {
  constexpr int kTasks = N == 64 ? 8 : 4;
  constexpr int kRows = N / 64;            // rows of a thread
  constexpr int kAtOnce = kTasks / kRows;  // stages that the tasks of all threads fill
  const int thread = threadIdx.x, half = thread % 2, cols = a.weight.cols;
  const int tiles_k = a.weight.units * a.weight.unit_tiles;
  int32_t row[kRows], next_row[kRows];
  const auto rows_of = [&](int item, int32_t* out) {
    const Work w = work_at<N>(a, item, blocks);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int column = r * 64 + thread / 2;
      out[r] = column >= w.count ? -1 : a.row_of != nullptr ? a.row_of[w.first + column] : w.first + column;
    }
  };
  if (static_cast<int>(blockIdx.x) < items) rows_of(blockIdx.x, next_row);
  int stage = 0;
  uint32_t round = 0;  // of the ring
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) row[r] = next_row[r];
    if (item + static_cast<int>(gridDim.x) < items) rows_of(item + gridDim.x, next_row);
    for (int first = 0; first < tiles_k; first += kAtOnce) {
      uint4 v[kTasks][4];
#pragma unroll
      for (int task = 0; task < kTasks; ++task) {
        const int r = row[task % kRows];
        const int64_t at = int64_t{r} * cols;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const int k = (first + task / kRows) * 64 + 16 * t + 8 * half;
          v[task][t] = ptx::load_activation(a.x + at + k, r >= 0 && k < cols);
        }
      }
#pragma unroll
      for (int task = 0; task < kTasks; ++task) {
        if (first + task / kRows >= tiles_k) break;
        if (task % kRows == 0 && round > 0) ptx::barrier_wait(&empty[stage], (round - 1) & 1);
        const int column = task % kRows * 64 + thread / 2;
        uint8_t* to = stages + stage * (N * 128) + column * 128;
        const uint4* q = v[task];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const uint4 chunk = c == 0   ? make_uint4(q[0].x, q[1].x, q[2].x, q[3].x)
                              : c == 1 ? make_uint4(q[0].y, q[1].y, q[2].y, q[3].y)
                              : c == 2 ? make_uint4(q[0].z, q[1].z, q[2].z, q[3].z)
                                       : make_uint4(q[0].w, q[1].w, q[2].w, q[3].w);
          *reinterpret_cast<uint4*>(to + ((4 * half + c) ^ (column & 7)) * 16) = chunk;
        }
        if (task % kRows == kRows - 1) {
          ptx::async_proxy_fence();
          ptx::barrier_arrive(&full[stage]);
          if (++stage == stage_count) stage = 0, ++round;
        }
      }
    }
  }
}

// A warp's tile row of each piece of work, unit by unit through its ring.
template <class W, int N>
struct WeightRing {
  const WgmmaArgs& a;
  uint8_t* ring;
  uint64_t* bar;
  int items, blocks, warp, lane;
  int item, unit = 0;             // to be asked for next
  const uint8_t* from = nullptr;  // lane 0: unit 0 of that item
  uint32_t asked = 0, taken = 0;  // units so far
  int tile = 0;                   // of the unit being taken

  __device__ __forceinline__ void ask() {
    if (item >= items) return;
    if (lane == 0) {
      const int bytes = (W::kPair + W::kScales) * (a.weight.unit_tiles / 2);
      if (unit == 0) {
        const Work w = work_at<N>(a, item, blocks);
        // A last block that is not full reads the last tile row again; what it makes of it is dropped.
        from = w.payload + int64_t{min(w.block * kWarps + warp, a.weight.tiles - 1)} * a.weight.units * bytes;
      }
      ptx::bulk_copy(ring + asked % kSlots * W::kUnit, from + int64_t{unit} * bytes, bytes, &bar[asked % kSlots]);
    }
    ++asked;
    if (++unit == a.weight.units) unit = 0, item += gridDim.x;
  }
  __device__ __forceinline__ void take(uint32_t (&fragments)[4][4]) {
    const uint32_t slot = taken % kSlots;
    if (tile == 0) ptx::barrier_wait(&bar[slot], taken / kSlots & 1);
    const typename W::Raw raw = W::read_unit(ring + slot * W::kUnit, a.weight.unit_tiles, tile, lane);
#pragma unroll
    for (int j = 0; j < 4; ++j) W::fragment(raw, j, fragments[j]);
    if (++tile < a.weight.unit_tiles) return;
    tile = 0;
    ++taken;
    __syncwarp();
    ask();
  }
};

#endif

template <class W, int N>
__global__ __launch_bounds__(384, 1) void wgmma_tiles_kernel(WgmmaArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = WgmmaShape<W, N>;
  extern __shared__ uint8_t raw_shared[];
  __shared__ __align__(8) uint64_t full[S::kStages], empty[S::kStages], ring_bar[kWarps * kSlots];
  uint8_t* stages = raw_shared + (1024 - ptx::shared_address(raw_shared) % 1024) % 1024;
  const int lane = threadIdx.x % 32;
  ptx::trigger();
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) ptx::barrier_init(&full[i], 128), ptx::barrier_init(&empty[i], kWarps);
    for (int i = 0; i < kWarps * kSlots; ++i) ptx::barrier_init(&ring_bar[i], 1);
    ptx::barrier_init_done();
  }
  __syncthreads();
  const bool grouped = a.group != nullptr;
  const int blocks = (a.weight.tiles + kWarps - 1) / kWarps;
  if (grouped) ptx::wait();
  const int items = blocks * (grouped ? *a.groups : (a.rows + N - 1) / N);
  if (threadIdx.x < 128) {
    if constexpr (N == 64)
      ptx::more_registers<S::kBringRegisters>();
    else
      ptx::fewer_registers<S::kBringRegisters>();
    if (!grouped) ptx::wait();
    bring_rows<N>(a, stages, full, empty, S::kStages, items, blocks);
    return;
  }
  if constexpr (N == 64)
    ptx::fewer_registers<S::kMultiplyRegisters>();
  else
    ptx::more_registers<S::kMultiplyRegisters>();
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, g = lane / 4, t = lane % 4;
  WeightRing<W, N> weights = {.a = a,
                              .ring = stages + S::kStages * S::kStage + warp * S::kRing,
                              .bar = &ring_bar[warp * kSlots],
                              .items = items,
                              .blocks = blocks,
                              .warp = warp,
                              .lane = lane,
                              .item = static_cast<int>(blockIdx.x)};
#pragma unroll
  for (int i = 0; i < kSlots; ++i) weights.ask();
  __syncwarp();
  if (!grouped) ptx::wait();  // weights are there from the start
  const int tiles_k = a.weight.units * a.weight.unit_tiles;
  float c[N / 2] = {};
  uint32_t fragments[2][4][4];
  int stage = 0, before = -1;
  uint32_t phase = 0;
  if (static_cast<int>(blockIdx.x) < items) weights.take(fragments[0]);
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const Work w = work_at<N>(a, item, blocks);
    const int at = w.block * kWarps + warp;
    const bool there = at < a.weight.tiles;
    const float scale0 = there ? w.row_scale[at * 16 + g] * W::kOut : 0.f;
    const float scale1 = there ? w.row_scale[at * 16 + g + 8] * W::kOut : 0.f;
    const bool last = item + static_cast<int>(gridDim.x) >= items;
    for (int k = 0; k < tiles_k; k += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        ptx::barrier_wait(&full[stage], phase);
        const uint64_t x = ptx::wgmma_tile(stages + stage * S::kStage);
        ptx::wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) ptx::wgmma<N>(c, fragments[odd][j], x + 2 * j, k > 0 || odd > 0 || j > 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (before >= 0 && lane == 0) ptx::barrier_arrive(&empty[before]);
        before = stage;
        if (odd == 0 || k + 2 < tiles_k || !last) weights.take(fragments[odd ^ 1]);
        if (++stage == S::kStages) stage = 0, phase ^= 1;
      }
    }
    ptx::wgmma_wait<0>();
    if (!there) continue;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int column = n * 8 + 2 * t + q;
        if (column >= w.count) continue;
        const float v0 = c[4 * n + q] * scale0, v1 = c[4 * n + q + 2] * scale1;
        const int64_t position = w.first + column;
        if (a.h != nullptr) {
          a.h[position * (a.weight.rows / 2) + at * 8 + g] = __bfloat16_as_ushort(__float2bfloat16_rn(silu(v0) * v1));
          continue;
        }
        float* y = a.y + position * a.weight.rows + at * 16 + g;
        if (at * 16 + g < a.weight.rows) y[0] = v0;
        if (at * 16 + g + 8 < a.weight.rows) y[8] = v1;
      }
  }
#endif
}

template <class W, int N>
void launch_wgmma(const MmaTilesArgs& m) {
  constexpr int kBytes = WgmmaShape<W, N>::kBytes;
  int device = 0, multiprocessors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  CUDA_CHECK(cudaFuncSetAttribute(wgmma_tiles_kernel<W, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int parts = m.groups.group != nullptr ? m.groups.most : (m.rows + N - 1) / N;
  const int items = (m.weight.tiles + kWarps - 1) / kWarps * parts;
  const WgmmaArgs a = {m.weight, m.x, m.rows, m.groups.group, m.groups.count, m.groups.row_of, m.y, m.h};
  launch({.grid = dim3(static_cast<unsigned>(std::min(items, multiprocessors))),
          .block = dim3(384),
          .shared_bytes = kBytes,
          .stream = m.stream},
         wgmma_tiles_kernel<W, N>, a);
}

template <class W>
void run_wgmma(const MmaTilesArgs& m) {
  if (m.block_rows == 256) return launch_wgmma<W, 256>(m);
  if (m.block_rows == 128) return launch_wgmma<W, 128>(m);
  launch_wgmma<W, 64>(m);
}

}  // namespace tiles
}  // namespace mettle::cuda
