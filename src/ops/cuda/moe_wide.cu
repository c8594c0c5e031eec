// See moe_wide.h. One warpgroup brings rows of x, 64 k at a time, by asynchronous copies past L1; the others multiply:
// each of their warps streams its tile rows of weights through a ring of its own and decodes them to the A operand in
// registers, one tile ahead of the tensor cores. The warpgroups share rows of x and may be as far apart as there are
// stages, so that one multiplies while another writes out.
// In a tile of 64 k lane position t of step j multiplies k = 16 t + 4 j + {0, 1, 2, 3} and the k of a k16 step lie t by
// t. So that whole chunks of 16 bytes can be copied, rows of x and h lie in memory in that order already.
#include "ops/cuda/moe_wide.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/device/load_l2.cuh"
#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/tile_formats.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/launch.h"
#include "tensor/gpu_check.h"

namespace mettle::cuda {
namespace {

constexpr int kTileRows = 16;  // of 16 rows of weights, in an item
constexpr int kSlots = 2;      // units of each tile row in the ring of a warp

// GROUPS warpgroups multiply, each warp TILES tile rows, against N rows of x.
template <int GROUPS, int TILES, int N>
struct Shape {
  static_assert(GROUPS * 4 * TILES == kTileRows);
  static constexpr int kTiles = TILES, kRows = N;
  static constexpr int kWarps = 4 * GROUPS, kThreads = 128 * (GROUPS + 1);
  static constexpr int kStage = N * 128, kStages = std::min(16, 80 * 1024 / kStage);  // 64 k of N rows of x
  static constexpr int kAhead = std::min(8, kStages - 2);  // stages whose copies are under way while another is begun
  static_assert(kAhead <= kStages - 2);                    // a stage is let go of while the next one is multiplied
  static constexpr int kRing = kSlots * TILES * tiles::Nvfp4::kUnit;
  static constexpr int kBringRegisters = GROUPS == 2 ? 56 : 64, kMultiplyRegisters = GROUPS == 2 ? 224 : 104;
  static constexpr int kLaunchRegisters = GROUPS == 2 ? 168 : 96;  // of a thread, as the block's size allows
  static_assert(128 * kBringRegisters + 128 * GROUPS * kMultiplyRegisters <= kThreads * kLaunchRegisters);
  static constexpr int kBytes = kStages * kStage + kWarps * kRing + 1024;  // 1024: to align the stages
};

struct WideArgs {
  P64View weight;  // shape of each matrix
  const uint16_t* x;
  const RowGroup* group;
  const int32_t* groups;
  const int32_t* row_of;
  float* y;
  uint16_t* h;
  int blocks;  // items a group
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Rows of an item; what belongs to its weights is read by who needs it.
struct Item {
  int block, first, count;
  const float* row_scale;
};
__device__ __forceinline__ Item item_at(const WideArgs& a, int number) {
  const int part = number / a.blocks;
  const RowGroup& g = a.group[part];
  const float* const* row_scale = a.h != nullptr ? &g.weights.gate_up_scale : &g.weights.down_scale;
  return {number - part * a.blocks, load_l2(&g.first), load_l2(&g.count), load_l2(row_scale)};
}

// Where column k of a row stands.
__device__ __forceinline__ int place_of(int k) { return (k & ~63) + k % 16 / 2 * 8 + k / 16 % 4 * 2 + k % 2; }

// Brings x: a warp four rows at once, a lane 16 bytes.
template <class S>
__device__ __forceinline__ void bring_rows(const WideArgs& a, uint8_t* stages, uint64_t* full, uint64_t* empty,
                                           int items) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, chunk = lane % 8;
  const int tiles_k = a.weight.units * a.weight.unit_tiles, stride = wide_stride(a.weight.cols);
  uint32_t begun = 0, round = 0;
  int stage = 0, told = 0;
  const auto tell = [&] {
    ptx::async_proxy_fence();
    ptx::barrier_arrive(&full[told]);
    told = told + 1 == S::kStages ? 0 : told + 1;
  };
  const auto row_of = [&](const Item& item) -> uint64_t {  // of the column that this lane looks after
    const int column = lane / 4 * 16 + warp * 4 + lane % 4, position = item.first + (column < item.count ? column : 0);
    const int row = a.row_of != nullptr ? a.row_of[position] : position;
    return reinterpret_cast<uint64_t>(a.x + int64_t{row} * stride);
  };
  Item item = {};
  uint64_t row = 0;
  if (static_cast<int>(blockIdx.x) < items) {
    item = item_at(a, blockIdx.x);
    row = row_of(item);
  }
  for (int number = blockIdx.x; number < items; number += gridDim.x) {
    const int count = item.count;
    const uint64_t from = row;
    if (number + static_cast<int>(gridDim.x) < items) {
      item = item_at(a, number + gridDim.x);
      row = row_of(item);
    }
    for (int tile = 0; tile < tiles_k; ++tile) {
      if (round > 0) ptx::barrier_wait(&empty[stage], (round - 1) & 1);
      uint8_t* to = stages + stage * S::kStage;
      const int k = tile * 64 + chunk * 8;
#pragma unroll
      for (int i = 0; i < S::kRows / 16; ++i) {
        const int column = i * 16 + warp * 4 + lane / 8;
        const auto* x = reinterpret_cast<const uint16_t*>(__shfl_sync(0xffffffffu, from, i * 4 + lane / 8));
        const bool there = column < count && k < stride;
        ptx::copy_async_16(to + column * 128 + ((chunk ^ (column & 7)) << 4), there ? x + k : a.x, there);
      }
      ptx::copy_async_commit();
      if (begun >= S::kAhead) {
        ptx::copy_async_wait<S::kAhead>();
        tell();
      }
      ++begun;
      if (++stage == S::kStages) stage = 0, ++round;
    }
  }
  ptx::copy_async_wait<0>();
  for (uint32_t i = begun < S::kAhead ? begun : S::kAhead; i > 0; --i) tell();
}

// A warp's tile rows of each item, unit by unit through its ring.
template <class S>
struct Weights {
  const WideArgs& a;
  uint8_t* ring;
  uint64_t* bar;
  int items, warp, lane;
  int number, unit = 0;                                    // to be asked for next
  const uint8_t *payload = nullptr, *following = nullptr;  // lane 0: of that item's matrix, and of the one behind it
  uint32_t asked = 0, taken = 0;                           // units so far
  int tile = 0;                                            // of the unit being taken

  __device__ __forceinline__ const uint8_t* payload_of(int item) const {
    const RowGroup& g = a.group[item / a.blocks];
    return load_l2(a.h != nullptr ? &g.weights.gate_up : &g.weights.down);
  }
  __device__ __forceinline__ void begin() {
    if (lane == 0 && number < items) following = payload_of(number);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) ask();
    __syncwarp();
  }
  __device__ __forceinline__ void ask() {
    if (number >= items) return;
    const int next = number + static_cast<int>(gridDim.x);
    if (lane == 0) {
      if (unit == 0) {
        payload = following;
        if (next < items) following = payload_of(next);
      }
      const int bytes = (tiles::Nvfp4::kPair + tiles::Nvfp4::kScales) * (a.weight.unit_tiles / 2);
      const int first = number % a.blocks * kTileRows + warp * S::kTiles;
      uint64_t* b = &bar[asked % kSlots];
      ptx::barrier_expect(b, S::kTiles * bytes);
#pragma unroll
      for (int m = 0; m < S::kTiles; ++m) {
        // A last block that is not full reads the last tile row again; what it makes of it is dropped.
        const int at = min(first + m, a.weight.tiles - 1);
        ptx::bulk_copy_more(ring + (asked % kSlots * S::kTiles + m) * tiles::Nvfp4::kUnit,
                            payload + (int64_t{at} * a.weight.units + unit) * bytes, bytes, b);
      }
    }
    ++asked;
    if (++unit == a.weight.units) unit = 0, number = next;
  }
  // The tile that comes next of tile row m; rows take turns.
  __device__ __forceinline__ void take(int m, uint32_t (&fragments)[4][4]) {
    const uint32_t slot = taken % kSlots;
    if (m == 0 && tile == 0) ptx::barrier_wait(&bar[slot], taken / kSlots & 1);
    const tiles::Nvfp4::Raw raw =
        tiles::Nvfp4::read_unit(ring + (slot * S::kTiles + m) * tiles::Nvfp4::kUnit, a.weight.unit_tiles, tile, lane);
#pragma unroll
    for (int j = 0; j < 4; ++j) tiles::Nvfp4::fragment(raw, j, fragments[j]);
    if (m + 1 < S::kTiles || ++tile < a.weight.unit_tiles) return;
    tile = 0;
    ++taken;
    __syncwarp();
    ask();
  }
};

struct Stages {
  uint8_t* data;
  uint64_t *full, *empty;
  int now = 0, before = -1;
  uint32_t phase = 0;
};

// All k of an item. The fragments of its first tile are there; leaves those of the next item's.
template <class S>
__device__ __forceinline__ void multiply(float (&c)[S::kTiles][S::kRows / 2], uint32_t (&fragments)[2][4][4],
                                         Weights<S>& weights, Stages& x, int tiles_k, bool last, int lane) {
  for (int k = 0; k < tiles_k; k += 2) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      ptx::barrier_wait(&x.full[x.now], x.phase);
      const uint64_t tile = ptx::wgmma_tile(x.data + x.now * S::kStage);
#pragma unroll
      for (int m = 0; m < S::kTiles; ++m) {
        const int at = (odd * S::kTiles + m) & 1;
        ptx::wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j)
          ptx::wgmma<S::kRows>(c[m], fragments[at][j], tile + 2 * j, k > 0 || odd > 0 || j > 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (m == 0) {
          if (x.before >= 0 && lane == 0) ptx::barrier_arrive(&x.empty[x.before]);
          x.before = x.now;
        }
        if (m + 1 < S::kTiles || odd == 0 || k + 2 < tiles_k || !last)
          weights.take((m + 1) % S::kTiles, fragments[at ^ 1]);
      }
      if (++x.now == S::kStages) x.now = 0, x.phase ^= 1;
    }
  }
  ptx::wgmma_wait<0>();
  if (lane == 0) ptx::barrier_arrive(&x.empty[x.before]);
  x.before = -1;
}

template <class S>
__device__ __forceinline__ void write_out(const WideArgs& a, const float (&c)[S::kRows / 2], const Item& item, int tile,
                                          float scale0, float scale1, int lane) {
  const int g = lane / 4, t = lane % 4, left = item.count - 2 * t;
  const int64_t position = item.first + 2 * t;
  if (a.h != nullptr) {
    const int width = a.weight.rows / 2, stride = wide_stride(width);
    uint16_t* h = a.h + position * stride + place_of(tile * 8 + g);
#pragma unroll
    for (int n = 0; n < S::kRows / 8; ++n, h += 8 * int64_t{stride})
#pragma unroll
      for (int q = 0; q < 2; ++q)
        if (n * 8 + q < left)
          h[q * stride] =
              __bfloat16_as_ushort(__float2bfloat16_rn(silu(c[4 * n + q] * scale0) * (c[4 * n + q + 2] * scale1)));
    if (tile + 1 == a.weight.tiles && width < stride)  // zeros behind the last column
      for (int column = lane; column < item.count; column += 32)
        for (int k = width; k < stride; ++k) a.h[int64_t{item.first + column} * stride + place_of(k)] = 0;
    return;
  }
  const int rows = a.weight.rows;
  const bool low = tile * 16 + g < rows, high = tile * 16 + g + 8 < rows;
  float* y = a.y + position * rows + tile * 16 + g;
#pragma unroll
  for (int n = 0; n < S::kRows / 8; ++n, y += 8 * int64_t{rows})
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      if (low && n * 8 + q < left) y[q * rows] = c[4 * n + q] * scale0;
      if (high && n * 8 + q < left) y[q * rows + 8] = c[4 * n + q + 2] * scale1;
    }
}

#endif

template <class S>
__global__ __launch_bounds__(S::kThreads, 1) void moe_wide_kernel(WideArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t raw_shared[];
  __shared__ __align__(8) uint64_t full[S::kStages], empty[S::kStages], ring_bar[S::kWarps * kSlots];
  uint8_t* stages = raw_shared + (1024 - ptx::shared_address(raw_shared) % 1024) % 1024;
  const int lane = threadIdx.x % 32, g = lane / 4;
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) ptx::barrier_init(&full[i], 128), ptx::barrier_init(&empty[i], S::kWarps);
    for (int i = 0; i < S::kWarps * kSlots; ++i) ptx::barrier_init(&ring_bar[i], 1);
    ptx::barrier_init_done();
  }
  // The first product tells the second to start when the groups are there: that one needs to wait for rows of h alone.
  const bool second = a.h == nullptr;
  if (!second) ptx::wait();
  ptx::trigger();
  __syncthreads();
  const int items = a.blocks * load_l2(a.groups);
  if (threadIdx.x < 128) {
    ptx::fewer_registers<S::kBringRegisters>();
    if (second) ptx::wait();
    bring_rows<S>(a, stages, full, empty, items);
    return;
  }
  ptx::more_registers<S::kMultiplyRegisters>();
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4;
  Weights<S> weights = {.a = a,
                        .ring = stages + S::kStages * S::kStage + warp * S::kRing,
                        .bar = &ring_bar[warp * kSlots],
                        .items = items,
                        .warp = warp,
                        .lane = lane,
                        .number = static_cast<int>(blockIdx.x)};
  weights.begin();
  const int tiles_k = a.weight.units * a.weight.unit_tiles;
  float c[S::kTiles][S::kRows / 2] = {};
  uint32_t fragments[2][4][4];
  Stages x = {stages, full, empty};
  Item next = {};
  if (static_cast<int>(blockIdx.x) < items) {
    next = item_at(a, blockIdx.x);
    weights.take(0, fragments[0]);
  }
  for (int number = blockIdx.x; number < items; number += gridDim.x) {
    const Item item = next;
    const bool last = number + static_cast<int>(gridDim.x) >= items;
    if (!last) next = item_at(a, number + gridDim.x);
    const int first = item.block * kTileRows + warp * S::kTiles;
    float scale[S::kTiles][2];
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m) {
      const int at = min(first + m, a.weight.tiles - 1);
      scale[m][0] = item.row_scale[at * 16 + g] * tiles::Nvfp4::kOut;
      scale[m][1] = item.row_scale[at * 16 + g + 8] * tiles::Nvfp4::kOut;
    }
    multiply<S>(c, fragments, weights, x, tiles_k, last, lane);
#pragma unroll
    for (int m = 0; m < S::kTiles; ++m)
      if (first + m < a.weight.tiles) write_out<S>(a, c[m], item, first + m, scale[m][0], scale[m][1], lane);
  }
#endif
}

// A thread makes 16 bytes: of each t the pair at 2 * chunk.
__global__ __launch_bounds__(256) void moe_wide_order_kernel(const uint16_t* x, int64_t chunks, int cols,
                                                             uint16_t* out) {
  ptx::trigger();
  ptx::wait();
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= chunks) return;
  const int in_row = wide_stride(cols) / 8;
  const int64_t row = i / in_row;
  const int chunk = static_cast<int>(i - row * in_row), first = chunk / 8 * 64 + chunk % 8 * 2;
  uint32_t pair[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int k = first + 16 * t;
    pair[t] = k < cols ? *reinterpret_cast<const uint32_t*>(x + row * cols + k) : 0u;
  }
  reinterpret_cast<uint4*>(out)[i] = make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

template <class S>
void launch_wide(const MmaTilesArgs& m) {
  int device = 0, multiprocessors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  CUDA_CHECK(cudaFuncSetAttribute(moe_wide_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes));
  const int blocks = (m.weight.tiles + kTileRows - 1) / kTileRows;
  const WideArgs a = {m.weight, m.x, m.groups.group, m.groups.count, m.groups.row_of, m.y, m.h, blocks};
  const int64_t items = int64_t{blocks} * m.groups.most;
  launch({.grid = dim3(static_cast<unsigned>(std::min<int64_t>(items, multiprocessors))),
          .block = dim3(S::kThreads),
          .shared_bytes = S::kBytes,
          .stream = m.stream},
         moe_wide_kernel<S>, a);
}

}  // namespace

void moe_wide_order(const uint16_t* x, int rows, int cols, uint16_t* out, CUstream_st* stream) {
  const int64_t chunks = int64_t{rows} * wide_stride(cols) / 8;
  launch({.grid = dim3(static_cast<unsigned>((chunks + 255) / 256)), .block = dim3(256), .stream = stream},
         moe_wide_order_kernel, x, chunks, cols, out);
}

void moe_wide(const MmaTilesArgs& m) {
  if (m.block_rows == 128) return launch_wide<Shape<2, 2, 128>>(m);
  if (m.block_rows == 96) return launch_wide<Shape<2, 2, 96>>(m);
  if (m.block_rows == 64) return launch_wide<Shape<4, 1, 64>>(m);
  if (m.block_rows == 32) return launch_wide<Shape<4, 1, 32>>(m);
  launch_wide<Shape<4, 1, 16>>(m);
}

}  // namespace mettle::cuda
