// The kernel behind mma_tiles_{nvfp4,fp8,bf16}. 8 warps. Steps of 128 k (two tiles of 64), staged by cp.async: weights
// as they are packed, activations as rows of 256 bytes whose 16-byte chunks are swapped pairwise in odd rows, so that
// the 8 lanes of a load phase (two rows, every other chunk) meet all banks.
#pragma once
#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/device/tile_formats.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/mma_tiles.h"

namespace mettle::cuda {
namespace tiles {

constexpr int kStepK = 128, kTileRows = 8;  // tile rows (of 16) in a block: one a warp when they are copied

// Shared memory of a block and its split over the warps.
template <class W, int BN>
struct Shape {
  static constexpr int kCodes = kTileRows * W::kPair, kScales = kTileRows * W::kScales, kX = BN * kStepK * 2;
  static constexpr int kStage = kCodes + kScales + kX;
  static constexpr int kStages = BN == 128 ? 2 : kStage <= 18 * 1024 ? 4 : kStage <= 33 * 1024 ? 3 : 2;
  static constexpr int kBytes = kStages * kStage;
  static constexpr int kColumnWarps = BN == 32 ? 1 : 2;  // warps side by side along the rows of x
  static constexpr int kRowTiles = BN == 32 ? 1 : 2;     // tile rows of a warp
  static constexpr int kBlocks = BN / kColumnWarps / 8;  // blocks of 8 rows of x a warp
  static constexpr int kBlocksPerSm = kBytes > 100 * 1024 ? 1 : BN == 32 && kBytes <= 74 * 1024 ? 3 : 2;
};

struct Args {
  P64View weight;
  const uint16_t* x;
  int rows;
  const RowGroup* group;
  const int32_t* groups;
  const int32_t* row_of;
  float* y;
  uint16_t* h;
};

// What a thread copies in every step: its warp's tile row of weights, and chunk threadIdx % 16 of some rows of x.
template <class W, int BN>
struct Copier {
  using S = Shape<W, BN>;
  static constexpr int kRows = BN / 16;
  const uint8_t* weights;  // unit 0 of the tile row
  const uint16_t* x;       // at the thread's chunk
  const int32_t* x_row;    // [BN] in shared memory; < 0: none
  int pairs_log2, unit_bytes, unit_tiles, cols;
  bool has_tile;

  __device__ __forceinline__ void copy_weights(uint8_t* stage, int step) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pair = step & ((1 << pairs_log2) - 1);
    const uint8_t* unit = weights + int64_t{step >> pairs_log2} * unit_bytes;
    uint8_t* to = stage + warp * W::kPair + lane * 16;
    const uint8_t* from = unit + pair * W::kPair + lane * 16;
#pragma unroll
    for (int i = 0; i < W::kPair / 512; ++i) ptx::copy_async_16(to + i * 512, from + i * 512, has_tile);
    if constexpr (W::kScales > 0)
      ptx::copy_async_4(stage + S::kCodes + warp * W::kScales + lane * 4,
                        unit + 512 * unit_tiles + lane * 2 * unit_tiles + 4 * pair, has_tile);
  }
  __device__ __forceinline__ void copy_x(uint8_t* stage, int step) const {
    const int chunk = threadIdx.x % 16, first = threadIdx.x / 16;
    uint8_t* to = stage + S::kCodes + S::kScales + first * 256 + (chunk ^ (first & 1)) * 16;
    const bool in = step * kStepK + chunk * 8 < cols;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = x_row[first + 16 * i];
      const bool ok = in && row >= 0;
      ptx::copy_async_16(to + i * 16 * 256, ok ? x + int64_t{row} * cols + step * kStepK : x, ok);
    }
  }
};

// One stage: c[tile row][block of 8 columns] += weights * x.
template <class W, int BN>
__device__ __forceinline__ void multiply_stage(float (*c)[Shape<W, BN>::kBlocks][4], const uint8_t* stage,
                                               int first_tile, int first_column, int columns, int lane) {
  using S = Shape<W, BN>;
  const int g = lane / 4, t = lane % 4;
  const uint8_t* x = stage + S::kCodes + S::kScales + (first_column + g) * 256;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    typename W::Raw raw[S::kRowTiles];
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r)
      raw[r] = W::read(stage + (first_tile + r) * W::kPair, stage + S::kCodes + (first_tile + r) * W::kScales, i, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[S::kRowTiles][2][4];
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r)
#pragma unroll
        for (int j = 0; j < 2; ++j) W::fragment(raw[r], 2 * half + j, a[r][j]);
      const uint8_t* chunk = x + ((i * 8 + 2 * t + half) ^ (g & 1)) * 16;
#pragma unroll
      for (int n = 0; n < S::kBlocks; n += 2) {
        if (BN == 32 && n * 8 >= columns) break;
        const uint4 b0 = *reinterpret_cast<const uint4*>(chunk + n * 8 * 256);
        const uint4 b1 = *reinterpret_cast<const uint4*>(chunk + (n + 1) * 8 * 256);
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int r = 0; r < S::kRowTiles; ++r) {
            ptx::mma_16816(c[r][n], a[r][j], ptx::word(b0, 2 * j), ptx::word(b0, 2 * j + 1));
            ptx::mma_16816(c[r][n + 1], a[r][j], ptx::word(b1, 2 * j), ptx::word(b1, 2 * j + 1));
          }
      }
    }
  }
}

template <class W, int BN>
__global__ __launch_bounds__(256, (Shape<W, BN>::kBlocksPerSm)) void mma_tiles_kernel(Args a) {
  using S = Shape<W, BN>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float row_scale[kTileRows * 16];
  __shared__ int32_t x_row[BN];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool grouped = a.group != nullptr;
  // Without groups, blocks that share weights are neighbours; with groups, blocks that share rows are.
  const int block = grouped ? blockIdx.x : blockIdx.y, part = grouped ? blockIdx.y : blockIdx.x;
  ptx::trigger();
  const uint8_t* payload = a.weight.payload;
  const float* scales = a.weight.row_scale;
  int first = part * BN, count = min(BN, a.rows - first);
  if (grouped) {
    ptx::wait();
    if (part >= *a.groups) return;
    const RowGroup& group = a.group[part];
    first = group.first, count = group.count;
    payload = a.h != nullptr ? group.weights.gate_up : group.weights.down;
    scales = a.h != nullptr ? group.weights.gate_up_scale : group.weights.down_scale;
  }
  const int steps = (a.weight.cols + kStepK - 1) / kStepK;

  Copier<W, BN> copier;
  const int tile = block * kTileRows + warp;
  copier.has_tile = tile < a.weight.tiles;
  copier.unit_tiles = a.weight.unit_tiles;
  copier.pairs_log2 = 31 - __clz(a.weight.unit_tiles / 2);
  copier.unit_bytes = (W::kPair + W::kScales) * (a.weight.unit_tiles / 2);
  copier.weights = payload + (copier.has_tile ? int64_t{tile} * a.weight.units * copier.unit_bytes : 0);
  copier.cols = a.weight.cols;
  copier.x = a.x + threadIdx.x % 16 * 8;
  copier.x_row = x_row;
  if (threadIdx.x < kTileRows * 16) {
    const int row = block * kTileRows * 16 + static_cast<int>(threadIdx.x);
    const bool ok = row < a.weight.tiles * 16;
    ptx::copy_async_4(&row_scale[threadIdx.x], scales + (ok ? row : 0), ok);
  }
#pragma unroll
  for (int s = 0; s < S::kStages - 1; ++s)
    if (s < steps) copier.copy_weights(shared + s * S::kStage, s);
  if (!grouped) ptx::wait();  // weights are there from the start, rows of x come from the kernel before
  for (int column = threadIdx.x; column < BN; column += blockDim.x)
    x_row[column] = column >= count ? -1 : a.row_of != nullptr ? a.row_of[first + column] : first + column;
  __syncthreads();
#pragma unroll
  for (int s = 0; s < S::kStages - 1; ++s) {
    if (s < steps) copier.copy_x(shared + s * S::kStage, s);
    ptx::copy_async_commit();
  }

  const int first_tile = warp / S::kColumnWarps * S::kRowTiles;
  const int first_column = warp % S::kColumnWarps * (BN / S::kColumnWarps);
  float c[S::kRowTiles][S::kBlocks][4] = {};
  int now = 0, next = S::kStages - 1;
  for (int s = 0; s < steps; ++s) {
    ptx::copy_async_wait<S::kStages - 2>();
    __syncthreads();
    if (s + S::kStages - 1 < steps) {
      copier.copy_weights(shared + next * S::kStage, s + S::kStages - 1);
      copier.copy_x(shared + next * S::kStage, s + S::kStages - 1);
    }
    ptx::copy_async_commit();
    multiply_stage<W, BN>(c, shared + now * S::kStage, first_tile, first_column, count, lane);
    now = now + 1 == S::kStages ? 0 : now + 1;
    next = next + 1 == S::kStages ? 0 : next + 1;
  }

#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r) {
    const int at = block * kTileRows + first_tile + r;
    if (at >= a.weight.tiles) break;
    const float scale0 = row_scale[(first_tile + r) * 16 + g] * W::kOut;
    const float scale1 = row_scale[(first_tile + r) * 16 + g + 8] * W::kOut;
#pragma unroll
    for (int n = 0; n < S::kBlocks; ++n)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int column = first_column + n * 8 + 2 * t + q;
        if (column >= count) continue;
        const float v0 = c[r][n][q] * scale0, v1 = c[r][n][q + 2] * scale1;
        const int64_t position = first + column;
        if (a.h != nullptr) {
          a.h[position * (a.weight.rows / 2) + at * 8 + g] = __bfloat16_as_ushort(__float2bfloat16_rn(silu(v0) * v1));
          continue;
        }
        float* y = a.y + position * a.weight.rows + at * 16 + g;
        if (at * 16 + g < a.weight.rows) y[0] = v0;
        if (at * 16 + g + 8 < a.weight.rows) y[8] = v1;
      }
  }
}

template <class W, int BN>
void launch_tiles(const MmaTilesArgs& m) {
  constexpr int kBytes = Shape<W, BN>::kBytes;
  CUDA_CHECK(cudaFuncSetAttribute(mma_tiles_kernel<W, BN>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const auto blocks = static_cast<unsigned>((m.weight.tiles + kTileRows - 1) / kTileRows);
  const bool grouped = m.groups.group != nullptr;
  const Args a = {m.weight, m.x, m.rows, m.groups.group, m.groups.count, m.groups.row_of, m.y, m.h};
  const dim3 grid = grouped ? dim3(blocks, static_cast<unsigned>(m.groups.most))
                            : dim3(static_cast<unsigned>((m.rows + BN - 1) / BN), blocks);
  launch({.grid = grid, .block = dim3(256), .shared_bytes = kBytes, .stream = m.stream}, mma_tiles_kernel<W, BN>, a);
}

template <class W>
void run_tiles(const MmaTilesArgs& m) {
  if (m.block_rows == 128) return launch_tiles<W, 128>(m);
  if (m.block_rows == 64) return launch_tiles<W, 64>(m);
  launch_tiles<W, 32>(m);
}

}  // namespace tiles
}  // namespace mettle::cuda
