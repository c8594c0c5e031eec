// See moe_held.h. Persistent blocks, each with an equal share of the pairs of tile rows of all groups. A block goes
// from group to group of its share: a barrier, the group's rows to shared memory, a barrier, then its warps take pairs
// of tile rows one after the other. A warp's ring holds one unit of both tile rows: they go to registers, the next ones
// are asked for, the registers are multiplied. What comes behind the last pair of a group is asked for before the
// barriers.
#include "ops/cuda/moe_held.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/device/load_l2.cuh"
#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/launch.h"
#include "tensor/gpu_check.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = kMoeHeldWarps, kTileRows = 2;         // of an item
constexpr int kBlocks = kMoeHeldRows / 8;                    // of eight rows of x
constexpr int kTileBytes = kMoeHeldRows * 128;               // of x: 64 k
constexpr int kMine = (kMoeHeldRows + kWarps - 1) / kWarps;  // rows of x that a warp brings

struct HeldArgs {
  P64View weight;  // shape of each matrix
  const uint16_t* x;
  const RowGroup* group;
  const int32_t* groups;
  const int32_t* row_of;
  float* y;
  uint16_t* h;
  uint32_t per_group;  // items
};

// The weights of a group's expert.
struct Source {
  const uint8_t* payload;
  const float* row_scale;
};
__device__ __forceinline__ Source source_of(const HeldArgs& a, uint32_t group) {
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

// The group's rows; those that are not there, and what is behind their end, become zero.
__device__ __forceinline__ void bring_rows(const HeldArgs& a, int first, int count, uint8_t* rows, int warp, int lane) {
  const int cols = a.weight.cols, chunks = a.weight.units * a.weight.unit_tiles * 8;
  int32_t row[kMine];  // of x; all are asked for at once
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int at = warp + i * kWarps, position = first + at;
    row[i] = at >= count ? -1 : a.row_of != nullptr ? a.row_of[position] : position;
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int at = warp + i * kWarps;
    if (at >= kMoeHeldRows || (at >= 8 && count <= 8)) continue;
    const uint16_t* from = a.x + int64_t{max(row[i], 0)} * cols;
    for (int chunk = lane; chunk < chunks; chunk += 32) {
      const bool ok = row[i] >= 0 && chunk * 8 < cols;
      ptx::copy_async_16(rows + place_of(at, chunk), ok ? from + chunk * 8 : a.x, ok);
    }
  }
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
}

// One unit of each tile row of an item to the ring. A lane copies what it will read, so nobody waits for anybody.
template <int TILES>
__device__ __forceinline__ void copy_units(const HeldArgs& a, const Source& source, int tile, int unit, uint8_t* ring,
                                           int lane) {
  constexpr int kBytes = p64::Nvfp4Stream<TILES>::kBytes;
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const bool ok = tile + r < a.weight.tiles;
    const uint8_t* from = source.payload + (ok ? (int64_t{tile + r} * a.weight.units + unit) * kBytes : 0);
    uint8_t* to = ring + r * kBytes;
#pragma unroll
    for (int i = 0; i < TILES; ++i) ptx::copy_async_16(to + i * 512 + lane * 16, from + i * 512 + lane * 16, ok);
    const int scales = 512 * TILES + lane * 2 * TILES;
    if constexpr (TILES == 8) {
      ptx::copy_async_16(to + scales, from + scales, ok);
    } else {
#pragma unroll
      for (int i = 0; i < TILES / 2; ++i) ptx::copy_async_4(to + scales + 4 * i, from + scales + 4 * i, ok);
    }
  }
  ptx::copy_async_commit();
}

template <int TILES>
__device__ __forceinline__ void read_unit(typename p64::Nvfp4Stream<TILES>::Unit& u, const uint8_t* slot, int lane) {
  const uint8_t* scales = slot + 512 * TILES + lane * 2 * TILES;
  if constexpr (TILES == 8) {
    const uint4 s = *reinterpret_cast<const uint4*>(scales);
    u.scale[0] = s.x, u.scale[1] = s.y, u.scale[2] = s.z, u.scale[3] = s.w;
  } else {
#pragma unroll
    for (int i = 0; i < TILES / 2; ++i) u.scale[i] = *reinterpret_cast<const uint32_t*>(scales + 4 * i);
  }
#pragma unroll
  for (int i = 0; i < TILES; ++i) u.code[i] = *reinterpret_cast<const uint4*>(slot + i * 512 + lane * 16);
}

// A unit of both tile rows against the first N blocks of eight rows; `rows`: of the unit's first k.
template <int TILES, int N>
__device__ __forceinline__ void multiply_units(float (&c)[kTileRows][kBlocks][4],
                                               const typename p64::Nvfp4Stream<TILES>::Unit (&u)[kTileRows],
                                               const uint8_t* rows, int lane) {
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    uint4 x[N][2];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const uint8_t* at = rows + i * kTileBytes + n * 1024;
      x[n][0] = *reinterpret_cast<const uint4*>(at + lane * 16);
      x[n][1] = *reinterpret_cast<const uint4*>(at + 512 + (lane ^ 4) * 16);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) {
        uint32_t w[4];
        p64::Nvfp4Stream<TILES>::fragments(u[r], i, j, w);
#pragma unroll
        for (int n = 0; n < N; ++n)
          ptx::mma_16816(c[r][n], w, ptx::word(x[n][j / 2], 2 * (j & 1)), ptx::word(x[n][j / 2], 2 * (j & 1) + 1));
      }
  }
}

__device__ __forceinline__ void write_out(const HeldArgs& a, const float (&c)[kBlocks][4], int tile, int first,
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
__global__ __launch_bounds__(kWarps * 32, kMoeHeldBlocks) void moe_held_kernel(HeldArgs a) {
  using W = p64::Nvfp4Stream<TILES>;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ uint32_t handed_out;  // items of the block's share
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  uint8_t *ring = memory + warp * (kTileRows * W::kBytes), *rows = memory + kWarps * kTileRows * W::kBytes;
  // The first product tells the second to start when the groups are there: that one needs to wait for rows of h alone.
  const bool second = a.h == nullptr;
  if (!second) ptx::wait();
  ptx::trigger();
  const uint32_t items = a.per_group * static_cast<uint32_t>(load_l2(a.groups));
  const auto border = [&](uint32_t block) { return static_cast<uint32_t>(uint64_t{items} * block / gridDim.x); };
  const uint32_t begin = border(blockIdx.x), end = border(blockIdx.x + 1);
  if (threadIdx.x == 0) handed_out = kWarps;  // seen behind the first group's barrier
  uint32_t number = begin + static_cast<uint32_t>(warp);
  Source source = {};
  const auto tile_of = [&](uint32_t item) { return static_cast<int>(item % a.per_group) * kTileRows; };
  if (number < end) {
    source = source_of(a, number / a.per_group);
    copy_units<TILES>(a, source, tile_of(number), 0, ring, lane);
  }
  if (second) ptx::wait();  // who follows relies on it, if there is nothing to do too
  const int units = a.weight.units;
  for (uint32_t group = begin / a.per_group; group * a.per_group < end; ++group) {
    const int first = load_l2(&a.group[group].first), count = load_l2(&a.group[group].count);
    __syncthreads();  // nobody reads the rows of the group before
    bring_rows(a, first, count, rows, warp, lane);
    __syncthreads();
    const uint32_t group_end = min(end, (group + 1) * a.per_group);
    while (number < group_end) {
      uint32_t next = 0;
      if (lane == 0) next = begin + atomicAdd(&handed_out, 1u);
      next = __shfl_sync(0xffffffffu, next, 0);
      Source next_source = source;
      if (next >= group_end && next < end) next_source = source_of(a, next / a.per_group);
      const int tile = tile_of(number), next_tile = tile_of(next);
      float scale[kTileRows][2];  // asked for now, needed last
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) {
        const bool there = tile + r < a.weight.tiles;
        scale[r][0] = there ? source.row_scale[(tile + r) * 16 + g] * W::kOut : 0.f;
        scale[r][1] = there ? source.row_scale[(tile + r) * 16 + g + 8] * W::kOut : 0.f;
      }
      float c[kTileRows][kBlocks][4] = {};
      for (int unit = 0; unit < units; ++unit) {
        ptx::copy_async_wait<0>();
        typename W::Unit u[kTileRows];
#pragma unroll
        for (int r = 0; r < kTileRows; ++r) read_unit<TILES>(u[r], ring + r * W::kBytes, lane);
        __syncwarp();
        if (unit + 1 < units)
          copy_units<TILES>(a, source, tile, unit + 1, ring, lane);
        else if (next < end)
          copy_units<TILES>(a, next_source, next_tile, 0, ring, lane);
        const uint8_t* x = rows + unit * (TILES * kTileBytes);
        if (count <= 8)
          multiply_units<TILES, 1>(c, u, x, lane);
        else
          multiply_units<TILES, kBlocks>(c, u, x, lane);
      }
#pragma unroll
      for (int r = 0; r < kTileRows; ++r)
        if (tile + r < a.weight.tiles) write_out(a, c[r], tile + r, first, count, scale[r][0], scale[r][1], lane);
      number = next;
      source = next_source;
    }
  }
}

template <int TILES>
void launch_held(const MmaTilesArgs& m) {
  const size_t bytes = moe_held_bytes(m.weight.units * TILES, p64::Nvfp4Stream<TILES>::kBytes);
  int device = 0, multiprocessors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  CUDA_CHECK(cudaFuncSetAttribute(moe_held_kernel<TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  const int per_group = (m.weight.tiles + kTileRows - 1) / kTileRows;
  const int64_t items = int64_t{per_group} * m.groups.most;
  const HeldArgs a = {
      m.weight, m.x, m.groups.group, m.groups.count, m.groups.row_of, m.y, m.h, static_cast<uint32_t>(per_group)};
  const auto grid = static_cast<unsigned>(
      std::min<int64_t>((items + kWarps - 1) / kWarps, int64_t{multiprocessors} * kMoeHeldBlocks));
  launch({.grid = dim3(grid), .block = dim3(kWarps * 32), .shared_bytes = bytes, .stream = m.stream},
         moe_held_kernel<TILES>, a);
}

}  // namespace

void moe_held(const MmaTilesArgs& m) {
  if (m.weight.unit_tiles == 8) return launch_held<8>(m);
  if (m.weight.unit_tiles == 4) return launch_held<4>(m);
  launch_held<2>(m);
}

}  // namespace mettle::cuda
