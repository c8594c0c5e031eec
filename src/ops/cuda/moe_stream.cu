// See moe_stream.h.
#include "ops/cuda/moe_stream.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/device/load_l2.cuh"
#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/launch.h"
#include "tensor/gpu_check.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = 8, kSlots = 2, kBlocksPerSm = 2;  // kSlots: units in the ring of a warp

struct StreamArgs {
  P64View weight;  // shape of each matrix
  const uint16_t* x;
  const RowGroup* group;
  const int32_t* groups;
  const int32_t* row_of;
  float* y;
  uint16_t* h;
  int run;  // tile rows of an item, so many that it has at least kSlots units
  uint32_t per_group;
};

// What a warp works on: `run` tile rows of a group. Units lie one behind the other.
struct Item {
  const uint8_t* payload = nullptr;    // unit 0 of the first tile row
  const float* row_scale = nullptr;    // of the matrix
  int units = 0;                       // that are there; 0: no item
  int tile = 0, first = 0, count = 0;  // first tile row, position, rows
};

template <int UNIT_BYTES>
__device__ __forceinline__ Item item_at(const StreamArgs& a, uint32_t number) {
  const uint32_t part = number / a.per_group;
  const RowGroup& g = a.group[part];
  const auto* payload = a.h != nullptr ? &g.weights.gate_up : &g.weights.down;
  const auto* row_scale = a.h != nullptr ? &g.weights.gate_up_scale : &g.weights.down_scale;
  const int tile = static_cast<int>(number - part * a.per_group) * a.run;
  return {load_l2(payload) + int64_t{tile} * a.weight.units * UNIT_BYTES,
          load_l2(row_scale),
          min(a.run, a.weight.tiles - tile) * a.weight.units,
          tile,
          load_l2(&g.first),
          load_l2(&g.count)};
}

// A lane copies what it will read, so nobody waits for anybody.
template <int TILES>
__device__ __forceinline__ void copy_unit(uint8_t* slot, const uint8_t* unit, int lane) {
  uint8_t* to = slot + lane * 16;  // what is left to add are constants
  const uint8_t* from = unit + lane * 16;
#pragma unroll
  for (int i = 0; i < TILES; ++i) ptx::copy_async_16(to + i * 512, from + i * 512, true);
  if constexpr (TILES == 8) {
    ptx::copy_async_16(to + 512 * TILES, from + 512 * TILES, true);
  } else {
    const int scales = 512 * TILES + lane * 2 * TILES;
#pragma unroll
    for (int i = 0; i < TILES / 2; ++i) ptx::copy_async_4(slot + scales + 4 * i, unit + scales + 4 * i, true);
  }
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

// 16 bytes of activations where `ok`; elsewhere `to` stays as it is.
__device__ __forceinline__ void load_where(uint32_t* to, const uint16_t* from, bool ok) {
  asm volatile("{\n.reg .pred q;\nsetp.ne.u32 q,%5,0;\n@q ld.global.v4.u32 {%0,%1,%2,%3},[%4];\n}\n"
               : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
               : "l"(from), "r"(static_cast<uint32_t>(ok)));
}

// Rows of x of a group as a lane reads them: column g (+ 8), from k = 16 t on. Tiles are asked for ahead, as many as
// the registers hold.
template <int TILES, int NT>
struct Rows {
  static constexpr int kAhead = NT == 1 ? 2 : 1;
  const uint16_t* row[NT];  // from the lane's first k
  const uint16_t* at[NT];   // from its k of the unit's first tile
  bool ok[NT];
  uint32_t b[kAhead + 1][NT][8];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i <= kAhead; ++i)
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int q = 0; q < 8; ++q) b[i][n][q] = 0;
  }
  // k: of the unit's first tile.
  __device__ __forceinline__ void begin_unit(int k, int lane_cols) {
#pragma unroll
    for (int n = 0; n < NT; ++n) at[n] = row[n] + k;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) ask(i, 0, k, lane_cols), ask(i, 1, k, lane_cols);
  }
  // Half of a tile's 16 values (two together would become a branch instead of predicated loads). lane_cols: columns
  // from the lane's first k on. Only units of two tiles may reach beyond them.
  __device__ __forceinline__ void ask(int tile, int half, int k, int lane_cols) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      uint32_t* to = b[tile % (kAhead + 1)][n] + 4 * half;
      bool in = ok[n];
      if constexpr (TILES == 2) {
        in = in && k + tile * 64 < lane_cols;
#pragma unroll
        for (int q = 0; q < 4; ++q) to[q] = in ? to[q] : 0;
      }
      load_where(to, at[n] + tile * 64 + 8 * half, in);
    }
  }
};

// One unit against the first N blocks of 8 rows.
template <int TILES, int NT, int N>
__device__ __forceinline__ void multiply_unit(float (&c)[NT][4], const typename p64::Nvfp4Stream<TILES>::Unit& u,
                                              Rows<TILES, NT>& x, int k, int lane_cols) {
  constexpr int kAhead = Rows<TILES, NT>::kAhead;
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    const uint32_t(*b)[8] = x.b[i % (kAhead + 1)];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + kAhead < TILES && j % 2 == 0) x.ask(i + kAhead, j / 2, k, lane_cols);
      uint32_t w[4];
      p64::Nvfp4Stream<TILES>::fragments(u, i, j, w);
#pragma unroll
      for (int n = 0; n < N; ++n) ptx::mma_16816(c[n], w, b[n][2 * j], b[n][2 * j + 1]);
    }
  }
}

template <int NT>
__device__ __forceinline__ void write_out(const StreamArgs& a, const float (&c)[NT][4], const Item& item, int tile,
                                          float scale0, float scale1, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const int column = n * 8 + 2 * t + q;
      if (column >= item.count) continue;
      const float v0 = c[n][q] * scale0, v1 = c[n][q + 2] * scale1;
      const int64_t position = item.first + column;
      if (a.h != nullptr) {
        a.h[position * (a.weight.rows / 2) + tile * 8 + g] = __bfloat16_as_ushort(__float2bfloat16_rn(silu(v0) * v1));
        continue;
      }
      float* y = a.y + position * a.weight.rows + tile * 16 + g;
      if (tile * 16 + g < a.weight.rows) y[0] = v0;
      if (tile * 16 + g + 8 < a.weight.rows) y[8] = v1;
    }
}

template <int TILES, int NT>
__global__ __launch_bounds__(kWarps * 32, kBlocksPerSm) void moe_stream_kernel(StreamArgs a) {
  using W = p64::Nvfp4Stream<TILES>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t handed_out;  // items of the block's share
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint8_t* ring = shared + warp * (kSlots * W::kBytes);
  if (threadIdx.x == 0) handed_out = kWarps;
  // The first product tells the second to start when the groups are there: that one needs to wait for rows of h alone.
  const bool second = a.h == nullptr;
  if (!second) ptx::wait();
  ptx::trigger();
  __syncthreads();
  const uint32_t items = a.per_group * static_cast<uint32_t>(load_l2(a.groups));
  const auto border = [&](uint32_t block) { return static_cast<uint32_t>(uint64_t{items} * block / gridDim.x); };
  const uint32_t begin = border(blockIdx.x), end = border(blockIdx.x + 1);
  if (begin + static_cast<uint32_t>(warp) >= end) {
    if (second) ptx::wait();  // who follows relies on it
    return;
  }

  Item item = item_at<W::kBytes>(a, begin + static_cast<uint32_t>(warp));
  const int units = a.weight.units, steps = a.run * units, cols = a.weight.cols, lane_cols = cols - 16 * t;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (s < item.units) copy_unit<TILES>(ring + s * W::kBytes, item.payload + s * W::kBytes, lane);
    ptx::copy_async_commit();
  }
  // Row of x of column g + 8 n; -1: none.
  int32_t row[NT];
  const auto rows_of = [&](const Item& of) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const int column = n * 8 + g;
      row[n] = column >= of.count ? -1 : a.row_of != nullptr ? a.row_of[of.first + column] : of.first + column;
    }
  };
  rows_of(item);
  if (second) ptx::wait();
  Rows<TILES, NT> x;
  uint32_t slot = 0;
  for (;;) {
    Item next;
    uint32_t number = 0;
    if (lane == 0) number = begin + atomicAdd(&handed_out, 1u);
    number = __shfl_sync(0xffffffffu, number, 0);
    if (number < end) next = item_at<W::kBytes>(a, number);
    x.clear();
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      x.ok[n] = row[n] >= 0;
      x.row[n] = a.x + int64_t{max(row[n], 0)} * cols + 16 * t;
    }
    float c[NT][4] = {};
    float scale0 = 0, scale1 = 0;
    int unit = 0, tile = item.tile;
    for (int s = 0; s < steps; ++s) {
      const int k = unit * TILES * 64;
      x.begin_unit(k, lane_cols);
      if (unit == 0 && tile < a.weight.tiles) {  // asked for now, needed last
        scale0 = item.row_scale[tile * 16 + g] * W::kOut;
        scale1 = item.row_scale[tile * 16 + g + 8] * W::kOut;
      }
      ptx::copy_async_wait<kSlots - 1>();
      typename W::Unit u;
      read_unit<TILES>(u, ring + slot * W::kBytes, lane);
      __syncwarp();
      const int ahead = s + kSlots;
      const bool here = ahead < steps;
      const int at = here ? ahead : ahead - steps;
      if (at < (here ? item.units : next.units))
        copy_unit<TILES>(ring + slot * W::kBytes, (here ? item.payload : next.payload) + int64_t{at} * W::kBytes, lane);
      ptx::copy_async_commit();
      slot = slot + 1 == kSlots ? 0 : slot + 1;
      if (s + 1 == steps) rows_of(next);
      if (NT == 1 || item.count <= 8)
        multiply_unit<TILES, NT, 1>(c, u, x, k, lane_cols);
      else
        multiply_unit<TILES, NT, NT>(c, u, x, k, lane_cols);
      if (++unit < units) continue;
      if (tile < a.weight.tiles) write_out<NT>(a, c, item, tile, scale0, scale1, lane);
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int q = 0; q < 4; ++q) c[n][q] = 0;
      unit = 0;
      ++tile;
    }
    if (next.units == 0) return;
    item = next;
  }
}

template <int TILES, int NT>
void launch_stream(const MmaTilesArgs& m) {
  constexpr int kBytes = kWarps * kSlots * p64::Nvfp4Stream<TILES>::kBytes;
  int device = 0, multiprocessors = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  CUDA_CHECK(cudaFuncSetAttribute(moe_stream_kernel<TILES, NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int run = (kSlots + m.weight.units - 1) / m.weight.units;
  const int per_group = (m.weight.tiles + run - 1) / run;
  const int64_t items = int64_t{per_group} * m.groups.most;
  const StreamArgs a = {
      m.weight, m.x, m.groups.group, m.groups.count, m.groups.row_of, m.y, m.h, run, static_cast<uint32_t>(per_group)};
  const auto grid =
      static_cast<unsigned>(std::min<int64_t>((items + kWarps - 1) / kWarps, int64_t{multiprocessors} * kBlocksPerSm));
  launch({.grid = dim3(grid), .block = dim3(kWarps * 32), .shared_bytes = kBytes, .stream = m.stream},
         moe_stream_kernel<TILES, NT>, a);
}

template <int TILES>
void launch_stream(const MmaTilesArgs& m) {
  m.block_rows > 8 ? launch_stream<TILES, 2>(m) : launch_stream<TILES, 1>(m);
}

}  // namespace

void moe_stream(const MmaTilesArgs& m) {
  if (m.weight.unit_tiles == 8) return launch_stream<8>(m);
  if (m.weight.unit_tiles == 4) return launch_stream<4>(m);
  launch_stream<2>(m);
}

}  // namespace mettle::cuda
