// See moe_fused_rows.h. Block b:
//   1  scores of router rows b (two rows of a tile, 8 apart) for every row of x, sent to all; the router's weights are
//      under way before x is there, and the shared expert's on their way to L2
//   2  receives all scores, chooses for all rows, a warp each (every block for itself), and makes the union of experts
//   3  every tile row b, b + blocks, ... of gate_up of all slots, their units spread over the warps; its values of h to
//      the workspace. Behind a warp's last units its first weights of 4 are asked for
//   4  a tile of 16 output rows: a warp takes every sixteenth slot; the products of a row are added in the order of its
//      choices, the shared expert last
// A unit is multiplied with up to eight rows at once, those that chose its expert; with more of them twice. Each unit's
// sum begins at zero and units are added in their order, so that a row's result does not hang on who multiplies what.
#include "ops/cuda/moe_fused_rows.h"

#include <cuda_bf16.h>

#include "ops/cuda/device/grid_arrival.cuh"
#include "ops/cuda/device/load_l2.cuh"
#include "ops/cuda/device/moe_fused_rows.cuh"
#include "ops/cuda/device/prefetch_bulk.cuh"
#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/moe_few_rows_scratch.h"
#include "tensor/gpu_check.h"

namespace mettle::cuda {
namespace {

using namespace fused_rows;
using GateUp = p64::Nvfp4Stream<8>;
constexpr int kDownAhead = 2;  // units of 4 that a warp asks for ahead of the other blocks' h
__device__ State states[kFusedStates];

// A tile row of gate_up of one slot.
struct Item {
  const uint8_t* payload;
  uint64_t columns;
  int32_t count;
  int32_t part;  // of its first column, among the sums of units
  int64_t h;     // of its first column: 8 values
};
static_assert(sizeof(Item) == kFusedRowsItem);

// A warp's way through units that are dealt to the warps in turn.
struct Cursor {
  int item, unit, units;
  __device__ __forceinline__ Cursor(int first, int per_item)
      : item(first / per_item), unit(first % per_item), units(per_item) {}
  __device__ __forceinline__ void step(int items, int rest) {  // kWarps units on: so many items and units
    item += items, unit += rest;
    if (unit >= units) unit -= units, ++item;
  }
};

// A unit against eight columns; at: the lane's k of the first tile, in the row of column lane / 4.
template <class W>
__device__ __forceinline__ void multiply_columns(float (&c)[4], const typename W::Unit& u, const uint16_t* at) {
#pragma unroll
  for (int i = 0; i < W::kTiles; ++i) {
    const uint4 low = *reinterpret_cast<const uint4*>(at + i * 64),
                high = *reinterpret_cast<const uint4*>(at + i * 64 + 8);
    p64::multiply<W, 1>(&c, u, i, {{{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}}});
  }
}

// 3: the block's items: its table, and their row scales on the way to shared memory.
template <int ROWS>
__device__ __forceinline__ void list_items(const Fused& a, const Shared<ROWS>& s, int items, Item* table,
                                           float* scales) {
  const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  for (int i = threadIdx.x; i < items * 16; i += kThreads) {
    const int number = block + i / 16 * blocks, slot = number / a.tiles_gate_up, tile = number - slot * a.tiles_gate_up;
    const UnionSlot& from = s.slot[slot];
    ptx::copy_async_4(scales + i, from.gate_up_scale + tile * 16 + i % 16, true);
    if (i % 16 != 0) continue;
    table[i / 16] = {from.gate_up + int64_t{tile} * a.units_gate_up * GateUp::kBytes, from.columns, from.count,
                     (from.begin * a.lies.tiles_of_slot + tile / blocks) * a.units_gate_up * 16,
                     int64_t{from.begin} * a.width + tile * 8};
  }
  ptx::copy_async_commit();
}

// The block's values of h from the sums of units: eight threads take a column of an item.
template <int ROWS>
__device__ __forceinline__ void write_h(const Fused& a, int items, const Item* table, const float* scales,
                                        const float* parts) {
  const int r = threadIdx.x % 8, part_stride = a.lies.tiles_of_slot * a.units_gate_up * 16;
  for (int task = threadIdx.x / 8; task < items * ROWS; task += kThreads / 8) {
    const Item& item = table[task / ROWS];
    const int column = task % ROWS;
    if (column >= item.count) continue;
    const float* at = parts + item.part + column * part_stride + r;
    float gate = 0, up = 0;
    for (int u = 0; u < a.units_gate_up; ++u) gate += at[u * 16], up += at[u * 16 + 8];
    const float* scale = scales + task / ROWS * 16 + r;
    gate *= scale[0] * GateUp::kOut, up *= scale[8] * GateUp::kOut;
    a.h[item.h + int64_t{column} * a.width + r] = __bfloat16_as_ushort(__float2bfloat16_rn(silu(gate) * up));
  }
}

// 4: a unit on its way, with the row scales of its slot.
template <class W>
struct DownUnit {
  typename W::Unit unit = {};
  float scale0 = 0, scale1 = 0;
};

template <int ROWS, int DOWN_TILES, int PER_LANE>
__global__ __launch_bounds__(kThreads, 1) void moe_fused_rows_kernel(Fused a) {
  using Down = p64::Nvfp4Stream<DOWN_TILES>;
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ Shared<ROWS> s;
  auto* x = reinterpret_cast<uint16_t*>(memory);                    // [ROWS][x_stride]
  auto* parts = reinterpret_cast<float*>(memory + a.lies.parts);    // [pair][tile row of the slot][unit][16]
  auto* table = reinterpret_cast<Item*>(memory + a.lies.table);     // [items]
  auto* scales = reinterpret_cast<float*>(memory + a.lies.scales);  // [items][16]
  auto* h = reinterpret_cast<uint16_t*>(memory);                    // [pair][h_stride]: when all of these are done with
  auto* products = reinterpret_cast<float*>(memory + a.lies.products);  // [pair][16]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  State& state = states[a.state];
  ptx::trigger();
  uint4 piece[kPieces];
  load_router(piece, a.router, block, block < a.router_pairs);
  float2 scale = router_scale(a.router, block, block < a.router_pairs);
  if (a.has_shared) {
    for (int i = block * kWarps + warp; i < a.tiles_gate_up * a.units_gate_up; i += blocks * kWarps)
      ptx::prefetch_l2<GateUp::kBytes>(a.shared.gate_up + int64_t{i} * GateUp::kBytes, lane);
    for (int i = block * kWarps + warp; i < a.tiles_down * a.units_down; i += blocks * kWarps)
      ptx::prefetch_l2<Down::kBytes>(a.shared.down + int64_t{i} * Down::kBytes, lane);
  }
  s.mask[threadIdx.x] = 0;
  ptx::wait();  // from here on no earlier launch of this kernel runs
  for (int row = 0; row < a.rows; ++row)
    for (int i = threadIdx.x; i * 8 < a.hidden; i += kThreads)
      ptx::copy_async_16(x + row * a.lies.x_stride + i * 8, a.x + int64_t{row} * a.hidden + i * 8, true);
  ptx::copy_async_commit();
  if (threadIdx.x == 0) {
    const uint32_t number = *static_cast<volatile uint32_t*>(&state.launch_number) + 1;
    s.number = number == 0 ? 1 : number;
  }
  ptx::copy_async_wait<0>();
  __syncthreads();
  for (int pair = block; pair < a.router_pairs; pair += blocks) {
    send_scores(a, state, s, piece, scale, x, pair);
    if (pair + blocks >= a.router_pairs) break;
    load_router(piece, a.router, pair + blocks, true);
    scale = router_scale(a.router, pair + blocks, true);
    __syncthreads();
  }
  ExpertPointers pointers;
  if (static_cast<int>(threadIdx.x) < a.experts) {
    const ExpertPointers& from = a.pointers[threadIdx.x];
    pointers = {load_l2(&from.gate_up), load_l2(&from.gate_up_scale), load_l2(&from.down), load_l2(&from.down_scale)};
  }
  choose<ROWS, PER_LANE>(a, state, s, parts);
  const int slots = make_union<kWarps>(s.slot, s.begin, s.mask[threadIdx.x], pointers,
                                       a.has_shared ? (1u << a.rows) - 1 : 0u, a.shared);
  __syncthreads();

  const int all = slots * a.tiles_gate_up, items = all > block ? (all - block + blocks - 1) / blocks : 0;
  const int whole = kWarps / a.units_gate_up, rest = kWarps % a.units_gate_up;
  const int part_stride = a.lies.tiles_of_slot * a.units_gate_up * 16;
  Cursor asked(warp, a.units_gate_up), taken = asked;
  GateUp::Unit even = {}, odd = {};
  const auto ask_first = [&](GateUp::Unit& u) {  // the table is not there yet
    if (asked.item < items) {
      const int number = block + asked.item * blocks, slot = number / a.tiles_gate_up;
      const int64_t unit = int64_t{number - slot * a.tiles_gate_up} * a.units_gate_up + asked.unit;
      GateUp::load(u, s.slot[slot].gate_up + unit * GateUp::kBytes, lane, true);
    }
    asked.step(whole, rest);
  };
  ask_first(even);
  ask_first(odd);
  list_items(a, s, items, table, scales);
  for (int i = threadIdx.x; i < a.rows * a.top_k; i += kThreads) {
    const int id = s.id[i];
    s.pair[i] = id < 0 ? -1 : s.begin[id] + __popc(s.mask[id] & ((1u << (i / a.top_k)) - 1));
  }
  __syncthreads();

  const auto down_at = [&](int slot, int tile, int unit) {
    return s.slot[slot].down + (int64_t{tile} * a.units_down + unit) * Down::kBytes;
  };
  int ahead = 0;
  const auto ask = [&](GateUp::Unit& u) {
    if (asked.item < items) {
      GateUp::load(u, table[asked.item].payload + asked.unit * GateUp::kBytes, lane, true);
    } else {
      const int slot = warp + ahead / a.units_down * kWarps;
      if (ahead < kDownAhead && slot < slots && block < a.tiles_down)
        ptx::prefetch_l2<Down::kBytes>(down_at(slot, block, ahead % a.units_down), lane);
      ++ahead;
    }
    asked.step(whole, rest);
  };
  const auto take = [&](const GateUp::Unit& u) {
    const Item& item = table[taken.item];
    for (int first = 0; first < item.count; first += 8) {
      float c[4] = {};
      const int row = row_of(item.columns, first + g);
      multiply_columns<GateUp>(c, u, x + row * a.lies.x_stride + taken.unit * 512 + 16 * t);
      const int column = first + 2 * t;
      float* to = parts + item.part + column * part_stride + taken.unit * 16 + g;
      if (column < item.count) to[0] = c[0], to[8] = c[2];
      if (column + 1 < item.count) to[part_stride] = c[1], to[part_stride + 8] = c[3];
    }
    taken.step(whole, rest);
  };
  while (taken.item < items) {
    take(even);
    ask(even);
    if (taken.item >= items) break;
    take(odd);
    ask(odd);
  }

  int asked_slot = warp, asked_unit = 0;
  const auto ask_down = [&](DownUnit<Down>& u, int tile) {
    if (asked_slot >= slots) return;
    Down::load(u.unit, down_at(asked_slot, tile, asked_unit), lane, true);
    const float* scale = s.slot[asked_slot].down_scale + tile * 16 + g;
    u.scale0 = scale[0], u.scale1 = scale[8];
    if (++asked_unit == a.units_down) asked_unit = 0, asked_slot += kWarps;
  };
  ptx::copy_async_wait<0>();
  __syncthreads();
  write_h<ROWS>(a, items, table, scales, parts);
  __syncthreads();
  // Who tells the others waits for what it asked for itself: the units ahead are asked for to registers behind that.
  if (threadIdx.x == 0) arrive(&state.blocks_with_h);
  DownUnit<Down> down_even, down_odd;
  if (block < a.tiles_down) ask_down(down_even, block), ask_down(down_odd, block);
  if (threadIdx.x == 0) wait_for_all(&state.blocks_with_h, gridDim.x);
  __syncthreads();

  // A warp reads the rows of its own slots alone; those of the first one are waited for alone.
  if (block < a.tiles_down)
    for (int slot = warp; slot < slots; slot += kWarps) {
      const int begin = s.slot[slot].begin, count = s.slot[slot].count, chunks = (a.lies.h_stride - 8) / 8;
      for (int column = 0; column < count; ++column)
        for (int chunk = lane; chunk < chunks; chunk += 32) {
          const bool ok = chunk * 8 < a.width;  // the last unit is padded
          ptx::copy_async_16(h + (begin + column) * a.lies.h_stride + chunk * 8,
                             a.h + int64_t{begin + column} * a.width + (ok ? chunk * 8 : 0), ok);
        }
      if (slot == warp) ptx::copy_async_commit();
    }
  ptx::copy_async_commit();
  ptx::copy_async_wait<1>();
  __syncwarp();
  for (int tile = block; tile < a.tiles_down; tile += blocks) {
    if (tile != block) {
      asked_slot = warp, asked_unit = 0;
      ask_down(down_even, tile), ask_down(down_odd, tile);
    }
    int slot = warp, unit = 0;
    const auto take_down = [&](const DownUnit<Down>& u) {
      if (slot != warp) {
        ptx::copy_async_wait<0>();
        __syncwarp();
      }
      const int begin = s.slot[slot].begin, count = s.slot[slot].count;
      for (int first = 0; first < count; first += 8) {
        const int mine = begin + (first + g < count ? first + g : 0);
        float c[4] = {};
        multiply_columns<Down>(c, u.unit, h + mine * a.lies.h_stride + unit * Down::kTiles * 64 + 16 * t);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int column = first + 2 * t + (q & 1);
          float* to = products + (begin + column) * 16 + g + 8 * (q >> 1);
          const float v = c[q] * ((q < 2 ? u.scale0 : u.scale1) * Down::kOut);
          if (column < count) *to = unit == 0 ? v : *to + v;
        }
      }
      if (++unit == a.units_down) unit = 0, slot += kWarps;
    };
    while (slot < slots) {
      take_down(down_even);
      ask_down(down_even, tile);
      if (slot >= slots) break;
      take_down(down_odd);
      ask_down(down_odd, tile);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < a.rows * 16; i += kThreads) {
      const int row = i / 16, r = i % 16;
      float sum = 0;
      for (int k = row * a.top_k; k < (row + 1) * a.top_k; ++k)
        if (s.pair[k] >= 0) sum += s.weight[k] * products[s.pair[k] * 16 + r];
      if (a.has_shared) sum += s.shared_scale[row] * products[(s.slot[slots - 1].begin + row) * 16 + r];
      a.partial[int64_t{row} * a.hidden + tile * 16 + r] = sum;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0 && atomicAdd(&state.blocks_ended, 1u) == gridDim.x - 1) {
    state.blocks_with_h = 0;
    state.blocks_ended = 0;
    state.launch_number = s.number;
  }
}

template <int ROWS, int DOWN_TILES, int PER_LANE>
void launch_rows(const Fused& a, int blocks, CUstream_st* stream) {
  CUDA_CHECK(cudaFuncSetAttribute(moe_fused_rows_kernel<ROWS, DOWN_TILES, PER_LANE>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, a.lies.bytes));
  launch({.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(kThreads),
          .shared_bytes = static_cast<size_t>(a.lies.bytes),
          .stream = stream},
         moe_fused_rows_kernel<ROWS, DOWN_TILES, PER_LANE>, a);
}

template <int ROWS>
void launch_rows(const Fused& a, int down_tiles, int blocks, CUstream_st* stream) {
  const bool many = a.experts > 256;
  if (down_tiles == 8)
    many ? launch_rows<ROWS, 8, 16>(a, blocks, stream) : launch_rows<ROWS, 8, 8>(a, blocks, stream);
  else
    many ? launch_rows<ROWS, 2, 16>(a, blocks, stream) : launch_rows<ROWS, 2, 8>(a, blocks, stream);
}

}  // namespace

void moe_fused_rows(const MoeArgs& args, CUstream_st* stream) {
  const MoeProblem& p = args.problem;
  const MoeWeights& w = *args.weights;
  int device = 0, blocks = 0, shared_per_block = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  if (args.rows > moe_fused_rows_most(p, blocks, static_cast<size_t>(shared_per_block)))
    return moe_few_rows(args, stream);
  const PackedMatrix &gate_up = w.experts.front().gate_up, &down = w.experts.front().down;
  const int held = args.rows > 8 ? kFusedRows : 8;
  const Fused a = {
      .rows = args.rows,
      .hidden = p.hidden,
      .width = p.width,
      .experts = p.experts,
      .top_k = p.top_k,
      .state = fused_state_of(stream),
      .renormalise = p.renormalise,
      .given = args.selection.given,
      .shared_gate = p.shared_gate,
      .has_shared = p.shared_width > 0,
      .units_gate_up = gate_up.units,
      .tiles_gate_up = static_cast<int>(gate_up.tiles),
      .units_down = down.units,
      .tiles_down = static_cast<int>(down.tiles),
      .router_pairs = router_pairs(w.router.rows),
      .score_stride = static_cast<int>(w.router.tiles) * 16,
      .lies = moe_fused_rows_shared(p, held, blocks),
      .router = view_of(w.router),
      .pointers = w.pointers,
      .shared = {w.shared.gate_up.data, w.shared.gate_up.row_scale, w.shared.down.data, w.shared.down.row_scale},
      .x = args.x.as<uint16_t>(),
      .h = carve_moe_few_rows(p, args.rows, args.ws.data).h,
      .partial = args.partial.as<float>(),
      .ids = args.selection.ids,
      .weights = args.selection.weights};
  if (held == 8)
    launch_rows<8>(a, down.unit_tiles, blocks, stream);
  else
    launch_rows<16>(a, down.unit_tiles, blocks, stream);
}

}  // namespace mettle::cuda
