// See product_bulk.h. Three warpgroups: a thread of the first asks for x, 64 k at a time, as stages become free; two
// multiply: each of their eight warps brings its tile row of weights through a ring of its own (bulk copies of whole
// units) and decodes it to the A operand in registers, one 64 k ahead of the tensor cores.
#include "ops/cuda/product_bulk.h"

#include <cuda_bf16.h>

#include "ops/cuda/device/bulk_order.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/device/tile_formats.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/launch.h"
#include "tensor/gpu_check.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = 8, kSlots = 2;  // that multiply; units in the ring of each

template <class W, int N>
struct Shape {
  static constexpr int kStage = N * 128;  // 64 k of N rows of x
  static constexpr int kStages = N == 256 ? 4 : N == 128 ? 6 : 8;
  static constexpr int kRing = kSlots * W::kUnit;
  static constexpr int kAskRegisters = 96, kMultiplyRegisters = 200;
  static_assert(128 * kAskRegisters + 256 * kMultiplyRegisters <= 384 * 168);
  static constexpr int kBytes = kStages * kStage + kWarps * kRing + 1024;  // 1024: to align the stages
};

struct BulkArgs {
  P64View first, second;
  float *first_y, *second_y;
  const uint8_t* x;
  int rows, padded, parts, splits, first_blocks;
};

__global__ __launch_bounds__(256) void bulk_order_kernel(BulkOrder a) {
  ptx::trigger();
  ptx::wait();
  order_chunk(a, static_cast<int>(blockIdx.x * 256 + threadIdx.x));
}

__global__ __launch_bounds__(256) void bulk_sum_kernel(const float4* part, float4* y, int splits, int64_t count) {
  ptx::trigger();
  ptx::wait();
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= count) return;
  float4 sum = part[i];
#pragma unroll 8
  for (int s = 1; s < splits; ++s) {
    const float4 v = part[s * count + i];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  y[i] = sum;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A warp's tile row of weights, unit by unit.
template <class W>
struct WeightRing {
  uint8_t* ring;
  uint64_t* bar;
  const uint8_t* from;  // the first unit
  int units, unit_tiles, unit_bytes, lane;
  int asked = 0, taken = 0, tile = 0;  // units so far; tile of the unit that is being taken

  __device__ __forceinline__ void ask() {
    if (asked >= units) return;
    if (lane == 0)
      ptx::bulk_copy(ring + asked % kSlots * W::kUnit, from + int64_t{asked} * unit_bytes,
                     static_cast<uint32_t>(unit_bytes), &bar[asked % kSlots]);
    ++asked;
  }
  __device__ __forceinline__ void take(uint32_t (&fragments)[4][4]) {
    const int slot = taken % kSlots;
    if (tile == 0) ptx::barrier_wait(&bar[slot], static_cast<uint32_t>(taken / kSlots & 1));
    const typename W::Raw raw = W::read_unit(ring + slot * W::kUnit, unit_tiles, tile, lane);
#pragma unroll
    for (int j = 0; j < 4; ++j) W::fragment(raw, j, fragments[j]);
    if (++tile < unit_tiles) return;
    tile = 0;
    ++taken;
    __syncwarp();
    ask();
  }
};

#endif

// blockIdx: rows of x, part of k, 128 rows of a matrix; neighbours share weights.
template <class W, int N>
__global__ __launch_bounds__(384, 1) void bulk_products_kernel(BulkArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<W, N>;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(8) uint64_t full[S::kStages], empty[S::kStages], ring_bar[kWarps * kSlots];
  uint8_t* stages = memory + (1024 - ptx::shared_address(memory) % 1024) % 1024;
  const int lane = static_cast<int>(threadIdx.x % 32), index = static_cast<int>(blockIdx.x);
  const int part = index % a.parts, split = index / a.parts % a.splits, block = index / a.parts / a.splits;
  const bool is_second = block >= a.first_blocks;
  const P64View w = is_second ? a.second : a.first;
  const int begin = w.units * split / a.splits, units = w.units * (split + 1) / a.splits - begin;
  const int tiles_k = units * w.unit_tiles;
  ptx::trigger();
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) ptx::barrier_init(&full[i], 1), ptx::barrier_init(&empty[i], kWarps);
    for (int i = 0; i < kWarps * kSlots; ++i) ptx::barrier_init(&ring_bar[i], 1);
    ptx::barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::fewer_registers<S::kAskRegisters>();
    if (threadIdx.x > 0) return;
    ptx::wait();  // weights are there from the start
    const int64_t step = int64_t{a.padded} * 128;
    const uint8_t* from = a.x + begin * w.unit_tiles * step + part * S::kStage;
    int stage = 0;
    uint32_t round = 0;
    for (int tile = 0; tile < tiles_k; ++tile, from += step) {
      if (round > 0) ptx::barrier_wait(&empty[stage], (round - 1) & 1);
      ptx::bulk_copy(stages + stage * S::kStage, from, S::kStage, &full[stage]);
      if (++stage == S::kStages) stage = 0, ++round;
    }
    return;
  }
  ptx::more_registers<S::kMultiplyRegisters>();
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, g = lane / 4, t = lane % 4;
  const int at = (is_second ? block - a.first_blocks : block) * kWarps + warp;
  const bool there = at < w.tiles;
  const int unit_bytes = (W::kPair + W::kScales) * (w.unit_tiles / 2);
  WeightRing<W> weights = {.ring = stages + S::kStages * S::kStage + warp * S::kRing,
                           .bar = &ring_bar[warp * kSlots],
                           // A block that is not full reads the last tile row again; what it makes of it is dropped.
                           .from = w.payload + (int64_t{there ? at : w.tiles - 1} * w.units + begin) * unit_bytes,
                           .units = units,
                           .unit_tiles = w.unit_tiles,
                           .unit_bytes = unit_bytes,
                           .lane = lane};
#pragma unroll
  for (int i = 0; i < kSlots; ++i) weights.ask();
  __syncwarp();
  const float scale0 = there ? w.row_scale[at * 16 + g] * W::kOut : 0.f;
  const float scale1 = there ? w.row_scale[at * 16 + g + 8] * W::kOut : 0.f;
  float c[N / 2] = {};
  uint32_t fragments[2][4][4];
  int stage = 0, before = -1;
  uint32_t phase = 0;
  weights.take(fragments[0]);
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
      if (odd == 0 || k + 2 < tiles_k) weights.take(fragments[odd ^ 1]);
      if (++stage == S::kStages) stage = 0, phase ^= 1;
    }
  }
  ptx::wgmma_wait<0>();
  if (!there) return;
  float* y = (is_second ? a.second_y : a.first_y) + int64_t{split} * a.rows * w.rows + at * 16 + g;
#pragma unroll
  for (int n = 0; n < N / 8; ++n)
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const int row = part * N + n * 8 + 2 * t + q;
      if (row >= a.rows) continue;
      float* to = y + int64_t{row} * w.rows;
      if (at * 16 + g < w.rows) to[0] = c[4 * n + q] * scale0;
      if (at * 16 + g + 8 < w.rows) to[8] = c[4 * n + q + 2] * scale1;
    }
#endif
}

int blocks_of(const P64View& w) { return (w.tiles + kWarps - 1) / kWarps; }

template <class W, int N>
void launch_bulk(const BulkProducts& b, CUstream_st* stream) {
  constexpr int kBytes = Shape<W, N>::kBytes;
  CUDA_CHECK(cudaFuncSetAttribute(bulk_products_kernel<W, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int parts = (b.rows + N - 1) / N, first = blocks_of(b.first);
  const BulkArgs a = {b.first, b.second, b.first_y, b.second_y, b.x, b.rows, bulk_padded_rows(b.rows),
                      parts,   b.splits, first};
  launch({.grid = dim3(static_cast<unsigned>((first + blocks_of(b.second)) * parts * b.splits)),
          .block = dim3(384),
          .shared_bytes = kBytes,
          .stream = stream},
         bulk_products_kernel<W, N>, a);
}

template <class W>
void run_bulk(const BulkProducts& b, CUstream_st* stream) {
  const int n = bulk_block_rows(b.rows, b.most_rows);
  if (n == 256) return launch_bulk<W, 256>(b, stream);
  if (n == 128) return launch_bulk<W, 128>(b, stream);
  launch_bulk<W, 64>(b, stream);
}

}  // namespace

void bulk_order(const uint16_t* x, int rows, int cols, int tiles_k, uint8_t* ordered, CUstream_st* stream) {
  const BulkOrder a = {x, ordered, rows, cols, tiles_k, bulk_padded_rows(rows)};
  launch(
      {.grid = dim3(static_cast<unsigned>((a.padded * tiles_k * 8 + 255) / 256)), .block = dim3(256), .stream = stream},
      bulk_order_kernel, a);
}

void bulk_sum(const float* parts, int splits, int64_t count, float* y, CUstream_st* stream) {
  launch({.grid = dim3(static_cast<unsigned>((count / 4 + 255) / 256)), .block = dim3(256), .stream = stream},
         bulk_sum_kernel, reinterpret_cast<const float4*>(parts), reinterpret_cast<float4*>(y), splits, count / 4);
}

void bulk_products(const BulkProducts& b, CUstream_st* stream) {
  if (b.first.format == WeightFormat::kFp8) return run_bulk<tiles::Fp8>(b, stream);
  run_bulk<tiles::Bf16>(b, stream);
}

void bulk_product(const P64View& w, const uint16_t* x, int rows, const BulkScratch& scratch, float* y,
                  CUstream_st* stream) {
  const int splits = bulk_splits(w, rows);
  bulk_order(x, rows, w.cols, bulk_tiles_k(w), scratch.ordered, stream);
  bulk_products({.first = w,
                 .first_y = splits == 1 ? y : scratch.parts,
                 .x = scratch.ordered,
                 .rows = rows,
                 .splits = splits,
                 .most_rows = 128},
                stream);
  if (splits > 1) bulk_sum(scratch.parts, splits, int64_t{rows} * w.rows, y, stream);
}

}  // namespace mettle::cuda
