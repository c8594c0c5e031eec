// See moe_direct.h. Persistent blocks, each with a share of the tile rows of all groups that costs as much as any
// other: a group of more than eight rows is dearer. The groups of a share follow each other through the slots: at the
// start all warps bring the rows of those that fit; after that the warp that is the last to leave a group brings the
// rows of the one that takes its slot.
#include "ops/cuda/moe_direct.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/device/copy_barrier.cuh"
#include "ops/cuda/device/load_l2.cuh"
#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/launch.h"
#include "tensor/gpu_check.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = kMoeDirectWarps, kSlots = kMoeDirectSlots, kRows = kMoeDirectRows;
constexpr int kBlocks = kRows / 8;         // of eight rows of x
constexpr int kTileBytes = kRows * 128;    // of x: 64 k
constexpr int kArrivals = kRows * 32 + 1;  // of a group: every lane for every row, and who gives the slot away
static_assert(kWarps >= kRows);            // at the start a warp brings one row of a group

struct DirectArgs {
  P64View weight;  // shape of each matrix
  const uint16_t* x;
  const RowGroup* group;
  const int32_t* groups;
  const int32_t* row_of;
  float* y;
  uint16_t* h;
  uint32_t slots;  // in use
};

// The weights of a group's expert.
struct Source {
  const uint8_t* payload;
  const float* row_scale;
};
__device__ __forceinline__ Source source_of(const DirectArgs& a, uint32_t group) {
  const RowGroup& g = a.group[group];
  const auto* payload = a.h != nullptr ? &g.weights.gate_up : &g.weights.down;
  const auto* row_scale = a.h != nullptr ? &g.weights.gate_up_scale : &g.weights.down_scale;
  return {load_l2(payload), load_l2(row_scale)};
}

// Where 16 bytes of a row, values 8 chunk and on, are held: [64 k][8 rows][half of a lane's 16 values][lane], as a lane
// g, t reads them: row g, k = 16 t + 8 half. Lanes of the second half change places by twos of g, so that a row's
// chunks come to lie in different banks.
__device__ __forceinline__ int place_of(int row, int chunk) {
  const int half = chunk & 1, lane = row % 8 * 4 + chunk % 8 / 2;
  return chunk / 8 * kTileBytes + row / 8 * 1024 + half * 512 + ((lane ^ (4 * half)) << 4);
}

// Row `at` of a group of `count` rows, by a warp; `row`: of x. Rows that are not there, and what is behind their end,
// become zero; the second eight are not looked at where none of them is there.
__device__ __forceinline__ void bring_row(const DirectArgs& a, int at, int count, int32_t row, uint8_t* rows,
                                          ptx::CopyBarrier& full, int lane) {
  const int cols = a.weight.cols, chunks = a.weight.units * a.weight.unit_tiles * 8;
  const uint16_t* from = a.x + int64_t{row} * cols;
  if (at < 8 || count > 8)
    for (int chunk = lane; chunk < chunks; chunk += 32) {
      const bool ok = at < count && chunk * 8 < cols;
      ptx::copy_async_16(rows + place_of(at, chunk), ok ? from + chunk * 8 : a.x, ok);
    }
  ptx::copy_barrier::arrive_when_copied(full);
}
__device__ __forceinline__ int32_t row_at(const DirectArgs& a, int first, int count, int at) {
  return at >= count ? 0 : a.row_of != nullptr ? a.row_of[first + at] : first + at;
}

// The unit in `u` against the first N blocks of eight rows; x: of the unit's first k.
template <int TILES, int N>
__device__ __forceinline__ void multiply_unit(float (&c)[kBlocks][4], const typename p64::Nvfp4Stream<TILES>::Unit& u,
                                              const uint8_t* x, int lane) {
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    uint4 b[N][2];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const uint8_t* at = x + i * kTileBytes + n * 1024;
      b[n][0] = *reinterpret_cast<const uint4*>(at + lane * 16);
      b[n][1] = *reinterpret_cast<const uint4*>(at + 512 + (lane ^ 4) * 16);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t w[4];
      p64::Nvfp4Stream<TILES>::fragments(u, i, j, w);
#pragma unroll
      for (int n = 0; n < N; ++n)
        ptx::mma_16816(c[n], w, ptx::word(b[n][j / 2], 2 * (j & 1)), ptx::word(b[n][j / 2], 2 * (j & 1) + 1));
    }
  }
}

// What a tile row costs, by the rows of its group (measured: blocks of dear groups end after 104 us, others after 82).
__device__ __forceinline__ uint32_t cost_of(int count) { return count > 8 ? 5 : 4; }

// Shares of equal cost: the items before those of block 0, 1, ... are border[0] and border[1] of block blockIdx.x. A
// thread looks after some groups that follow each other. By the whole block.
__device__ __forceinline__ void find_borders(const DirectArgs& a, uint32_t groups, uint32_t (&border)[2]) {
  __shared__ uint32_t costs[kWarps];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t each = (groups + kWarps * 32 - 1) / (kWarps * 32);
  const uint32_t first = threadIdx.x * each, last = min(groups, first + each);
  uint32_t mine = 0;
  for (uint32_t i = first; i < last; ++i) mine += cost_of(load_l2(&a.group[i].count));
  uint32_t to_here = mine;
#pragma unroll
  for (uint32_t d = 1; d < 32; d *= 2) {
    const uint32_t before = __shfl_up_sync(0xffffffffu, to_here, d);
    if (lane >= d) to_here += before;
  }
  if (lane == 31) costs[warp] = to_here;
  __syncthreads();
  uint32_t all = 0, before = to_here - mine;
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) {
    if (w < warp) before += costs[w];
    all += costs[w];
  }
  const auto tiles = static_cast<uint32_t>(a.weight.tiles);
  for (uint32_t i = 0; i < 2; ++i) {
    const uint64_t target = uint64_t{all} * tiles * (blockIdx.x + i) / gridDim.x;  // cost of all items before
    if (threadIdx.x == 0 && target == uint64_t{all} * tiles) border[i] = groups * tiles;
    uint64_t at = uint64_t{before} * tiles;
    if (target < at || target >= at + uint64_t{mine} * tiles) continue;
    for (uint32_t group = first; group < last; ++group) {
      const uint32_t cost = cost_of(load_l2(&a.group[group].count));
      if (target < at + uint64_t{cost} * tiles) {
        border[i] = group * tiles + static_cast<uint32_t>(target - at) / cost;
        break;
      }
      at += uint64_t{cost} * tiles;
    }
  }
  __syncthreads();
}

__device__ __forceinline__ void write_out(const DirectArgs& a, const float (&c)[kBlocks][4], int tile, int first,
                                          int count, float scale0, float scale1, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const int column = n * 8 + 2 * t + q;
      if (column >= count) continue;
      const float v0 = c[n][q] * scale0, v1 = c[n][q + 2] * scale1;
      const int64_t position = first + column;
      if (a.h != nullptr) {
        a.h[position * (a.weight.rows / 2) + tile * 8 + g] = __bfloat16_as_ushort(__float2bfloat16_rn(silu(v0) * v1));
        continue;
      }
      float* y = a.y + position * a.weight.rows + tile * 16 + g;
      if (tile * 16 + g < a.weight.rows) y[0] = v0;
      if (tile * 16 + g + 8 < a.weight.rows) y[8] = v1;
    }
}

template <int TILES>
__global__ __launch_bounds__(kWarps * 32, 1) void moe_direct_kernel(DirectArgs a) {
  using W = p64::Nvfp4Stream<TILES>;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ ptx::CopyBarrier full[kSlots];
  __shared__ uint32_t left[kSlots];  // warps that read the rows of a slot no more
  __shared__ uint32_t handed_out;    // items (tile rows) of the block's share
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const int units = a.weight.units, tile_row_bytes = units * W::kBytes, slot_bytes = units * TILES * kTileBytes;
  if (threadIdx.x < kSlots) ptx::copy_barrier::init(full[threadIdx.x], kArrivals), left[threadIdx.x] = 0;
  if (threadIdx.x == 0) handed_out = kWarps;
  // The first product tells the second to start when the groups are there: that one needs to wait for rows of h alone.
  const bool second = a.h == nullptr;
  if (!second) ptx::wait();
  ptx::trigger();
  __shared__ uint32_t border[2];
  find_borders(a, static_cast<uint32_t>(load_l2(a.groups)), border);
  const auto per_group = static_cast<uint32_t>(a.weight.tiles);
  const uint32_t begin = border[0], end = border[1];
  const uint32_t first_group = begin / per_group, part_groups = (end + per_group - 1) / per_group - first_group;
  const uint32_t held = begin < end ? part_groups : 0;  // groups of the share

  uint32_t number = begin + static_cast<uint32_t>(warp), group = number / per_group;
  Source source = {};
  typename W::Unit u = {};
  if (number < end) {
    source = source_of(a, group);
    W::load(u, source.payload + int64_t{number - group * per_group} * tile_row_bytes, lane, true);
  }
  if (second) ptx::wait();  // who follows relies on it, if there is nothing to do too
  if (warp < kRows) {
    int32_t row[kSlots];  // all are asked for at once
    int count[kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      const bool there = static_cast<uint32_t>(s) < min(a.slots, held);
      count[s] = there ? load_l2(&a.group[first_group + s].count) : 0;
      row[s] = there ? row_at(a, load_l2(&a.group[first_group + s].first), count[s], warp) : 0;
    }
#pragma unroll
    for (int s = 0; s < kSlots; ++s)
      if (static_cast<uint32_t>(s) < min(a.slots, held)) {
        bring_row(a, warp, count[s], row[s], memory + s * slot_bytes, full[s], lane);
        if (threadIdx.x == 0) ptx::copy_barrier::arrive(full[s]);
      }
  }

  const auto wait_for = [&](uint32_t s) { ptx::copy_barrier::wait(full[s % a.slots], s / a.slots & 1); };
  // The warp reads the rows of group s of the share no more. Nobody leaves what is not there yet.
  const auto leave = [&](uint32_t s) {
    if (s + a.slots >= held) return;
    wait_for(s);
    __syncwarp();
    uint32_t before = 0;
    if (lane == 0) {
      __threadfence_block();
      before = atomicAdd(&left[s % a.slots], 1u);
    }
    if (__shfl_sync(0xffffffffu, before, 0) + 1 < kWarps) return;
    ptx::CopyBarrier& barrier = full[s % a.slots];
    if (lane == 0) {
      left[s % a.slots] = 0;
      ptx::copy_barrier::arrive(barrier);
    }
    const RowGroup& next = a.group[first_group + s + a.slots];
    const int first = load_l2(&next.first), count = load_l2(&next.count);
    for (int at = 0; at < kRows; ++at)
      bring_row(a, at, count, row_at(a, first, count, at), memory + s % a.slots * slot_bytes, barrier, lane);
  };

  uint32_t s = 0;  // group of the share whose rows the warp reads
  const uint8_t* rows = memory;
  int first = 0, count = 0;  // 0: not known yet
  while (number < end) {
    if (count == 0 || s < group - first_group) {
      for (; s < group - first_group; ++s) leave(s);
      first = load_l2(&a.group[group].first), count = load_l2(&a.group[group].count);
      rows = memory + s % a.slots * slot_bytes;
      wait_for(s);
    }
    const int tile = static_cast<int>(number - group * per_group);
    const uint8_t* from = source.payload + int64_t{tile} * tile_row_bytes;
    const float scale0 = source.row_scale[tile * 16 + g];  // asked for now, needed last
    const float scale1 = source.row_scale[tile * 16 + g + 8];
    float c[kBlocks][4] = {};
    bool more = true;
    for (int unit = 0; unit < units; ++unit) {
      from += W::kBytes;
      if (unit + 1 == units) {
        if (lane == 0) number = begin + atomicAdd(&handed_out, 1u);
        number = __shfl_sync(0xffffffffu, number, 0);
        more = number < end;
        if (more && number >= (group + 1) * per_group) {
          group = number / per_group;
          source = source_of(a, group);
        }
        if (more) from = source.payload + int64_t{number - group * per_group} * tile_row_bytes;
      }
      typename W::Unit next;
      W::load(next, from, lane, more);
      __syncwarp();  // the compiler would move these loads behind the products
      const uint8_t* x = rows + unit * (TILES * kTileBytes);
      if (count <= 8)
        multiply_unit<TILES, 1>(c, u, x, lane);
      else
        multiply_unit<TILES, kBlocks>(c, u, x, lane);
      u = next;
    }
    write_out(a, c, tile, first, count, scale0 * W::kOut, scale1 * W::kOut, lane);
  }
  for (; s < held; ++s) leave(s);
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();  // shared memory stays the block's until what it asked for is there
}

template <int TILES>
void launch_direct(const MmaTilesArgs& m) {
  int device = 0, multiprocessors = 0, shared = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const int tiles_k = m.weight.units * TILES, slots = moe_direct_slots(tiles_k, static_cast<size_t>(shared));
  const int bytes = slots * moe_direct_slot_bytes(tiles_k);
  CUDA_CHECK(cudaFuncSetAttribute(moe_direct_kernel<TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const int64_t items = int64_t{m.weight.tiles} * m.groups.most;
  const DirectArgs a = {
      m.weight, m.x, m.groups.group, m.groups.count, m.groups.row_of, m.y, m.h, static_cast<uint32_t>(slots)};
  const auto grid = static_cast<unsigned>(std::min<int64_t>((items + kWarps - 1) / kWarps, multiprocessors));
  launch(
      {.grid = dim3(grid), .block = dim3(kWarps * 32), .shared_bytes = static_cast<size_t>(bytes), .stream = m.stream},
      moe_direct_kernel<TILES>, a);
}

}  // namespace

void moe_direct(const MmaTilesArgs& m) {
  if (m.weight.unit_tiles == 8) return launch_direct<8>(m);
  if (m.weight.unit_tiles == 4) return launch_direct<4>(m);
  launch_direct<2>(m);
}

}  // namespace mettle::cuda
