// See linear_bulk.h. Three warpgroups as in product_bulk.cu: a thread of the first asks for x, 64 k at a time and again
// and again, as stages become free; two multiply: each of their eight warps brings its tile rows of weights through a
// ring of its own (bulk copies of whole units) and decodes them to the A operand in registers, one 64 k ahead of the
// tensor cores. Neither stream ends where a piece of the matrix does.
#include "ops/cuda/linear_bulk.h"

#include <cuda_bf16.h>

#include <type_traits>

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
  static constexpr int kStages = N == 128 ? 6 : N == 32 ? 8 : 4;
  static constexpr int kRing = kSlots * W::kUnit;
  static constexpr int kBlocks = N <= 64 ? 2 : 1;  // on a multiprocessor
  static constexpr int kAskRegisters = kBlocks == 2 ? 32 : 40, kMultiplyRegisters = kBlocks == 2 ? 104 : 232;
  static_assert(128 * kAskRegisters + 256 * kMultiplyRegisters <= 384 * (kBlocks == 2 ? 80 : 168));
  static constexpr int kBytes =
      kStages * kStage + kWarps * kRing + 8 * (2 * kStages + kWarps * kSlots) + 1024;  // 1024: to align
  static_assert(kBlocks * (kBytes + 1536) <= 228 * 1024);
};

struct LinearBulk {
  P64View weight;
  const uint8_t* x;
  float* y;
  int rows, padded;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What a lane reads of a tile. kEarly: it may be read while products of the fragments before are under way; whoever
// multiplies what was read as it is must not, for it may be read into registers that these products still take from.
template <class W>
struct Lane {
  static constexpr bool kEarly = !std::is_same_v<W, tiles::Bf16>;
  typename W::Raw raw;
  __device__ __forceinline__ void read(const uint8_t* unit, int unit_tiles, int tile, int, int lane) {
    raw = W::read_unit(unit, unit_tiles, tile, lane);
  }
  __device__ __forceinline__ void decode(int, uint32_t (&fragments)[4][4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) W::fragment(raw, j, fragments[j]);
  }
};
// The scales of two tiles come with the first.
template <>
struct Lane<tiles::Nvfp4> {
  static constexpr bool kEarly = true;
  uint4 code;
  uint32_t scales;
  __device__ __forceinline__ void read(const uint8_t* unit, int unit_tiles, int tile, int odd, int lane) {
    code = *reinterpret_cast<const uint4*>(unit + tile * 512 + lane * 16);
    if (odd == 0)
      scales = *reinterpret_cast<const uint32_t*>(unit + 512 * unit_tiles + lane * 2 * unit_tiles + 2 * tile);
  }
  __device__ __forceinline__ void decode(int odd, uint32_t (&fragments)[4][4]) const {
    const tiles::Nvfp4::Raw raw = {code, p64::decode_scale(__byte_perm(scales, 0u, odd == 0 ? 0x4040 : 0x4242)),
                                   p64::decode_scale(__byte_perm(scales, 0u, odd == 0 ? 0x4141 : 0x4343))};
#pragma unroll
    for (int j = 0; j < 4; ++j) tiles::Nvfp4::fragment(raw, j, fragments[j]);
  }
};

// Nothing that is made of these values stands in front of the wait that stands in front of this.
template <class T>
__device__ __forceinline__ void keep_behind(T& value) {
  static_assert(sizeof(T) % 4 == 0);
#pragma unroll
  for (size_t i = 0; i < sizeof(T) / 4; ++i) asm volatile("" : "+r"(reinterpret_cast<uint32_t*>(&value)[i])::"memory");
}

// A warp's tile rows, one of each piece of 128 rows that the block takes, unit by unit.
template <class W>
struct WeightRing {
  const P64View& w;
  uint8_t* ring;
  uint64_t* bar;
  int items, unit_bytes, warp, lane;
  int item, unit = 0;                  // to be asked for next
  int asked = 0, taken = 0, tile = 0;  // units so far; tile of the unit that is being taken
  Lane<W> early = {};

  __device__ __forceinline__ void ask() {
    if (item >= items) return;
    if (lane == 0) {
      // A last piece that is not full reads the last tile row again; what it makes of it is dropped.
      const int64_t at = min(item * kWarps + warp, w.tiles - 1);
      ptx::bulk_copy(ring + asked % kSlots * W::kUnit, w.payload + (at * w.units + unit) * unit_bytes,
                     static_cast<uint32_t>(unit_bytes), &bar[asked % kSlots]);
    }
    ++asked;
    if (++unit == w.units) unit = 0, item += static_cast<int>(gridDim.x);
  }
  __device__ __forceinline__ void read(int odd, Lane<W>& to) const {
    const int slot = taken % kSlots;
    if (tile == 0) ptx::barrier_wait(&bar[slot], static_cast<uint32_t>(taken / kSlots & 1));
    to.read(ring + slot * W::kUnit, w.unit_tiles, tile, odd, lane);
  }
  // Before and behind the wait for the products of `fragments`.
  __device__ __forceinline__ void read_early(int odd) {
    if constexpr (Lane<W>::kEarly) read(odd, early);
  }
  __device__ __forceinline__ void take(int odd, uint32_t (&fragments)[4][4]) {
    if constexpr (Lane<W>::kEarly) {
      keep_behind(early);
      early.decode(odd, fragments);
    } else {
      Lane<W> now;
      read(odd, now);
      now.decode(odd, fragments);
    }
    if (++tile < w.unit_tiles) return;
    tile = 0;
    ++taken;
    __syncwarp();
    ask();
  }
};

#endif

template <class W, int N>
__global__ __launch_bounds__(384, Shape<W, N>::kBlocks) void linear_bulk_kernel(LinearBulk a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<W, N>;
  extern __shared__ __align__(128) uint8_t memory[];
  uint8_t* stages = memory + (1024 - ptx::shared_address(memory) % 1024) % 1024;
  auto* full = reinterpret_cast<uint64_t*>(stages + S::kStages * S::kStage + kWarps * S::kRing);
  uint64_t *empty = full + S::kStages, *ring_bar = empty + S::kStages;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int items = (a.weight.tiles + kWarps - 1) / kWarps, tiles_k = a.weight.units * a.weight.unit_tiles;
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
    int stage = 0;
    uint32_t round = 0;
    for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
      const uint8_t* from = a.x;
      for (int tile = 0; tile < tiles_k; ++tile, from += step) {
        if (round > 0) ptx::barrier_wait(&empty[stage], (round - 1) & 1);
        ptx::bulk_copy(stages + stage * S::kStage, from, S::kStage, &full[stage]);
        if (++stage == S::kStages) stage = 0, ++round;
      }
    }
    return;
  }
  ptx::more_registers<S::kMultiplyRegisters>();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 - 4, 0), g = lane / 4, t = lane % 4;
  WeightRing<W> weights = {.w = a.weight,
                           .ring = stages + S::kStages * S::kStage + warp * S::kRing,
                           .bar = &ring_bar[warp * kSlots],
                           .items = items,
                           .unit_bytes = (W::kPair + W::kScales) * (a.weight.unit_tiles / 2),
                           .warp = warp,
                           .lane = lane,
                           .item = static_cast<int>(blockIdx.x)};
#pragma unroll
  for (int i = 0; i < kSlots; ++i) weights.ask();
  __syncwarp();
  const uint64_t first_x = ptx::wgmma_tile(stages);
  float c[N / 2] = {};
  uint32_t fragments[2][4][4];
  int stage = 0, before = -1;  // the stage whose products may still be under way
  uint32_t phase = 0;
  weights.read_early(0);
  weights.take(0, fragments[0]);
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const int at = item * kWarps + warp;
    const bool there = at < a.weight.tiles, last = item + static_cast<int>(gridDim.x) >= items;
    const float scale0 = there ? a.weight.row_scale[at * 16 + g] * W::kOut : 0.f;
    const float scale1 = there ? a.weight.row_scale[at * 16 + g + 8] * W::kOut : 0.f;
    for (int k = 0; k < tiles_k; k += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        ptx::barrier_wait(&full[stage], phase);
        const uint64_t x = first_x + static_cast<uint64_t>(stage * (S::kStage / 16));
        ptx::wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) ptx::wgmma<N>(c, fragments[odd][j], x + 2 * j, k > 0 || odd > 0 || j > 0);
        ptx::wgmma_commit();
        const bool more = odd == 0 || k + 2 < tiles_k || !last;
        if (more) weights.read_early(odd ^ 1);
        ptx::wgmma_wait<1>();
        if (before >= 0 && lane == 0) ptx::barrier_arrive(&empty[before]);
        before = stage;
        if (more) weights.take(odd ^ 1, fragments[odd ^ 1]);
        if (++stage == S::kStages) stage = 0, phase ^= 1;
      }
    }
    ptx::wgmma_wait<0>();
    if (lane == 0) ptx::barrier_arrive(&empty[before]);  // x of the next piece comes while this one is written
    before = -1;
    const bool upper = at * 16 + g < a.weight.rows, lower = at * 16 + g + 8 < a.weight.rows;
    float* y = a.y + at * 16 + g;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int row = n * 8 + 2 * t + q;
        if (row >= a.rows) continue;
        float* to = y + int64_t{row} * a.weight.rows;
        if (upper) to[0] = c[4 * n + q] * scale0;
        if (lower) to[8] = c[4 * n + q + 2] * scale1;
      }
  }
#endif
}

template <class W, int N>
void launch_bulk(const LinearBulk& a, CUstream_st* stream) {
  using S = Shape<W, N>;
  int device = 0, multiprocessors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  CUDA_CHECK(cudaFuncSetAttribute(linear_bulk_kernel<W, N>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kBytes));
  const int blocks = std::min((a.weight.tiles + kWarps - 1) / kWarps, multiprocessors * S::kBlocks);
  launch({.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(384), .shared_bytes = S::kBytes, .stream = stream},
         linear_bulk_kernel<W, N>, a);
}

template <class W>
void run_bulk(const LinearBulk& a, CUstream_st* stream) {
  if (a.rows <= 32) return launch_bulk<W, 32>(a, stream);
  if (a.rows <= 64) return launch_bulk<W, 64>(a, stream);
  if (a.rows <= 128) return launch_bulk<W, 128>(a, stream);
  launch_bulk<W, 256>(a, stream);
}

}  // namespace

void linear_bulk(const MmaTilesArgs& m, uint8_t* ordered) {
  for (int first = 0; first < m.rows; first += kBulkMostRows) {
    const int rows = std::min(m.rows - first, kBulkMostRows);
    bulk_order(m.x + int64_t{first} * m.weight.cols, rows, m.weight.cols, bulk_tiles_k(m.weight), ordered, m.stream);
    const LinearBulk a = {m.weight, ordered, m.y + int64_t{first} * m.weight.rows, rows, bulk_padded_rows(rows)};
    if (m.weight.format == WeightFormat::kNvfp4)
      run_bulk<tiles::Nvfp4>(a, m.stream);
    else if (m.weight.format == WeightFormat::kFp8)
      run_bulk<tiles::Fp8>(a, m.stream);
    else
      run_bulk<tiles::Bf16>(a, m.stream);
  }
}

}  // namespace mettle::cuda
