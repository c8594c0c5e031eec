// See moe_fused_small.h. Block b:
//   1  scores of router rows b (two rows of a tile, 8 apart), sent to all; its weights are under way before x is there
//   2  receives all scores, chooses (every block for itself)
//   3  an equal share of the tile rows of gate_up of all slots, their units spread over the warps, and the weights of 4
//      already under way; sends 8 values of h for each tile row
//   4  a tile of 16 output rows: a warp a slot, whose h it receives; the warps' products are added in the order of the
//      choices
// A slot is a choice, in their order, then the shared expert. In the product of 4 and 3 one column of eight is used.
#include "ops/cuda/moe_fused_small.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/packets.cuh"
#include "ops/cuda/device/router_pairs.cuh"
#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/moe_few_rows_scratch.h"
#include "tensor/gpu_check.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = 10, kThreads = 32 * kWarps;
constexpr int kPairs = (kMaxExperts / 16 + 1) * 8;                     // of router rows, at most
constexpr int kPieces = (kFusedHidden / 4 + kThreads - 1) / kThreads;  // 4 k of two router rows, of a thread
constexpr int kItems = kThreads / 16;                                  // tile rows of gate_up in a block, at most
static_assert(kPairs <= kThreads);
using GateUp = p64::Nvfp4Stream<8>;

// What the launches of one stream leave each other: one after the other they need no more than one. All 0 when the
// module is loaded.
struct State {
  uint32_t launch_number, blocks_ended;  // of the last launch that ended; of this one
  Packet scores[kPairs], h[(kMaxTopK + 1) * kFusedWidth / 4];
};
__device__ State states[kFusedStates];

struct Fused {
  int hidden, width, experts, top_k, slots, state;
  bool renormalise, given, shared_gate;
  int units_gate_up, tiles_gate_up, units_down, tiles_down, h_stride, router_pairs;
  P64View router;
  const ExpertPointers* pointers;
  ExpertPointers shared;
  const uint16_t* x;
  float* partial;
  int32_t* ids;
  float* weights;
};

// As ExpertPointers, without values of its own.
struct Pointers {
  const uint8_t* gate_up;
  const float* gate_up_scale;
  const uint8_t* down;
  const float* down_scale;
};
__device__ __forceinline__ Pointers plain(const ExpertPointers& p) {
  return {p.gate_up, p.gate_up_scale, p.down, p.down_scale};
}

// What the blocks of a launch agree on.
template <int PER_LANE>
struct Shared {
  Pointers table[PER_LANE * 32];
  float scores[kPairs * 2];
  float sums[kWarps][2];
  float products[kMaxTopK + 1][16];
  float weight[kMaxTopK];
  int32_t id[kMaxTopK];
  uint32_t number;
};

__device__ __forceinline__ float sum_of_warp(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  return v;
}

// A unit against the one row in shared memory, from its first k on: c[0], c[2] of lanes 4 g are rows g and g + 8.
template <class W>
__device__ __forceinline__ void multiply_row(float (&c)[4], const typename W::Unit& u, const uint16_t* row, int lane) {
#pragma unroll
  for (int i = 0; i < W::kTiles; ++i) {
    uint4 low = {}, high = {};
    if (lane < 4) {
      const auto* from = reinterpret_cast<const uint4*>(row + i * 64 + 16 * lane);
      low = from[0], high = from[1];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t w[4];
      W::fragments(u, i, j, w);
      const uint4& b = j < 2 ? low : high;
      ptx::mma_16816(c, w, ptx::word(b, 2 * (j & 1)), ptx::word(b, 2 * (j & 1) + 1));
    }
  }
}

// 1: the scores of pair `pair`; every thread has its pieces of the first one.
template <int PER_LANE>
__device__ __forceinline__ void send_scores(const Fused& a, Shared<PER_LANE>& s, const uint4 (&piece)[kPieces],
                                            float2 scale, const uint16_t* x, int pair) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float low = 0, high = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int p = threadIdx.x + i * kThreads;
    if (p * 4 >= a.hidden) break;
    const auto* at = reinterpret_cast<const uint32_t*>(x + p / 16 * 64 + p % 4 * 16 + p / 4 % 4 * 4);
    const float2 x0 = both(at[0]), x1 = both(at[1]);
    const float2 l0 = both(piece[i].x), h0 = both(piece[i].y), l1 = both(piece[i].z), h1 = both(piece[i].w);
    low = fmaf(l1.y, x1.y, fmaf(l1.x, x1.x, fmaf(l0.y, x0.y, fmaf(l0.x, x0.x, low))));
    high = fmaf(h1.y, x1.y, fmaf(h1.x, x1.x, fmaf(h0.y, x0.y, fmaf(h0.x, x0.x, high))));
  }
  low = sum_of_warp(low), high = sum_of_warp(high);
  if (lane == 0) s.sums[warp][0] = low, s.sums[warp][1] = high;
  __syncthreads();
  if (threadIdx.x == 0) {
    low = high = 0;
    for (int w = 0; w < kWarps; ++w) low += s.sums[w][0], high += s.sums[w][1];
    send(&states[a.state].scores[pair], __float_as_uint(low * scale.x), __float_as_uint(high * scale.y), s.number);
  }
}

// 2: ids and weights of the choices, in shared memory; block 0 also writes them out.
template <int PER_LANE>
__device__ __forceinline__ void choose(const Fused& a, Shared<PER_LANE>& s, int pairs) {
  const int lane = threadIdx.x % 32, pair = threadIdx.x;
  if (pair < pairs) {
    uint2 score[1];
    receive<1>(score, &states[a.state].scores[pair], 0, s.number, [](int) { return true; });
    s.scores[pair / 8 * 16 + pair % 8] = __uint_as_float(score[0].x);
    s.scores[pair / 8 * 16 + pair % 8 + 8] = __uint_as_float(score[0].y);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const Choice c = a.given ? given_row(a.ids, a.weights, a.top_k, lane)
                             : choose_row<PER_LANE>(s.scores, a.experts, a.top_k, a.renormalise, lane);
    if (lane < a.top_k) {
      s.id[lane] = c.id, s.weight[lane] = c.weight;
      if (!a.given && blockIdx.x == 0) a.ids[lane] = c.id, a.weights[lane] = c.weight;
    }
  }
  __syncthreads();
}

// Null pointers: padding.
template <int PER_LANE>
__device__ __forceinline__ Pointers weights_of(const Fused& a, const Shared<PER_LANE>& s, int slot) {
  if (slot == a.top_k) return plain(a.shared);
  return s.id[slot] < 0 ? Pointers{} : s.table[s.id[slot]];
}

// 4: the warp's slot against one tile of 16 output rows; `first` is its first unit.
template <class W>
__device__ __forceinline__ void down_slot(const Fused& a, const Pointers& w, typename W::Unit& first, int slot,
                                          int tile, uint16_t* h, float* out, uint32_t number, int lane) {
  constexpr int kAtOnce = 4;
  const int packets = a.width / 4, g = lane / 4;
  const float scale0 = w.down_scale[tile * 16 + g] * W::kOut, scale1 = w.down_scale[tile * 16 + g + 8] * W::kOut;
  for (int at = 0; at < packets; at += 32 * kAtOnce) {
    uint2 data[kAtOnce];
    const auto wanted = [&](int i) { return at + i * 32 + lane < packets; };
    receive<kAtOnce>(data, states[a.state].h + slot * packets + at + lane, 32, number, wanted);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (wanted(i)) *reinterpret_cast<uint2*>(h + (at + i * 32 + lane) * 4) = data[i];
  }
  for (int k = a.width + lane; k < a.h_stride; k += 32) h[k] = 0;  // the last unit is padded
  __syncwarp();
  float c[4] = {};
  multiply_row<W>(c, first, h, lane);
  for (int unit = 1; unit < a.units_down; ++unit) {
    W::load(first, w.down + (int64_t{tile} * a.units_down + unit) * W::kBytes, lane, true);
    multiply_row<W>(c, first, h + unit * W::kTiles * 64, lane);
  }
  if (lane % 4 == 0) out[g] = c[0] * scale0, out[g + 8] = c[2] * scale1;
  __syncwarp();
}

template <int DOWN_TILES, int PER_LANE>
__global__ __launch_bounds__(kThreads, 1) void moe_fused_small_kernel(Fused a) {
  using Down = p64::Nvfp4Stream<DOWN_TILES>;
  extern __shared__ __align__(16) uint8_t dynamic[];
  __shared__ Shared<PER_LANE> s;
  auto* x = reinterpret_cast<uint16_t*>(dynamic);                   // [hidden]
  uint16_t* h = x + a.hidden;                                       // [kWarps][h_stride]
  auto* parts = reinterpret_cast<float*>(h + kWarps * a.h_stride);  // [units of the block][16]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const int pairs = a.router_pairs, blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  ptx::trigger();
  uint4 piece[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int p = threadIdx.x + i * kThreads;
    piece[i] = router_piece(a.router, block, p, block < pairs && p * 4 < a.hidden);
  }
  float2 scale = router_scale(a.router, block, block < pairs);
  for (int e = threadIdx.x; e < a.experts; e += kThreads) s.table[e] = plain(a.pointers[e]);
  ptx::wait();  // from here on no earlier launch of this kernel runs
  if (threadIdx.x == 0) {
    const uint32_t number = *static_cast<volatile uint32_t*>(&states[a.state].launch_number) + 1;
    s.number = number == 0 ? 1 : number;
  }
  for (int i = threadIdx.x; i * 8 < a.hidden; i += kThreads)
    reinterpret_cast<uint4*>(x)[i] = ptx::load_activation(a.x + i * 8, true);
  __syncthreads();
  const uint32_t number = s.number;
  for (int pair = block; pair < pairs; pair += blocks) {
    send_scores(a, s, piece, scale, x, pair);
    if (pair + blocks >= pairs) break;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int p = threadIdx.x + i * kThreads;
      piece[i] = router_piece(a.router, pair + blocks, p, p * 4 < a.hidden);
    }
    scale = router_scale(a.router, pair + blocks, true);
    __syncthreads();
  }
  choose(a, s, pairs);

  const int rows = a.slots * a.tiles_gate_up;  // tile rows of all slots
  const int begin = rows * block / blocks, items = rows * (block + 1) / blocks - begin, units = items * a.units_gate_up;
  const auto ask = [&](GateUp::Unit& u, int number_of_unit) {
    const int row = begin + number_of_unit / a.units_gate_up, slot = row / a.tiles_gate_up;
    const uint8_t* payload = number_of_unit < units ? weights_of(a, s, slot).gate_up : nullptr;
    const int64_t unit = int64_t{row - slot * a.tiles_gate_up} * a.units_gate_up + number_of_unit % a.units_gate_up;
    GateUp::load(u, payload + unit * GateUp::kBytes, lane, payload != nullptr);
  };
  GateUp::Unit now, next;
  ask(now, warp);
  ask(next, warp + kWarps);
  const int my_row = begin + static_cast<int>(threadIdx.x) / 16, my_slot = my_row / a.tiles_gate_up;
  const int my_tile = my_row - my_slot * a.tiles_gate_up;
  const bool mine = static_cast<int>(threadIdx.x) < items * 16 && weights_of(a, s, my_slot).gate_up != nullptr;
  const float my_scale =
      mine ? weights_of(a, s, my_slot).gate_up_scale[my_tile * 16 + threadIdx.x % 16] * GateUp::kOut : 0.f;
  typename Down::Unit down;
  const auto ask_down = [&](int slot, int tile) {
    const uint8_t* payload = slot < a.slots && tile < a.tiles_down ? weights_of(a, s, slot).down : nullptr;
    Down::load(down, payload + int64_t{tile} * a.units_down * Down::kBytes, lane, payload != nullptr);
  };
  ask_down(warp, block);
  for (int u = warp; u < units; u += kWarps) {
    float c[4] = {};
    multiply_row<GateUp>(c, now, x + u % a.units_gate_up * 512, lane);
    if (lane % 4 == 0) parts[u * 16 + g] = c[0], parts[u * 16 + g + 8] = c[2];
    now = next;
    if (u + 2 * kWarps < units) ask(next, u + 2 * kWarps);
  }
  __syncthreads();
  {
    float v = 0;
    if (mine)
      for (int u = 0; u < a.units_gate_up; ++u)
        v += parts[(static_cast<int>(threadIdx.x) / 16 * a.units_gate_up + u) * 16 + threadIdx.x % 16];
    v *= my_scale;
    const float up = __shfl_down_sync(0xffffffffu, v, 8);
    const uint32_t bits = __bfloat16_as_ushort(__float2bfloat16_rn(silu(v) * up));
    const uint32_t pair = bits | __shfl_down_sync(0xffffffffu, bits, 1) << 16;
    const uint32_t other = __shfl_down_sync(0xffffffffu, pair, 2);
    const int r = threadIdx.x % 16;
    if (mine && (r == 0 || r == 4))
      send(&states[a.state].h[my_slot * (a.width / 4) + my_tile * 2 + r / 4], pair, other, number);
  }

  for (int tile = block; tile < a.tiles_down; tile += blocks) {
    for (int slot = warp; slot < a.slots; slot += kWarps) {
      if (tile != block || slot != warp) ask_down(slot, tile);
      const Pointers w = weights_of(a, s, slot);
      if (w.down != nullptr)
        down_slot<Down>(a, w, down, slot, tile, h + warp * a.h_stride, s.products[slot], number, lane);
    }
    __syncthreads();
    if (threadIdx.x < 16) {
      float sum = 0;
      for (int k = 0; k < a.top_k; ++k)
        if (s.id[k] >= 0) sum += s.weight[k] * s.products[k][threadIdx.x];
      if (a.slots > a.top_k)
        sum += (a.shared_gate ? sigmoid(s.scores[a.experts]) : 1.f) * s.products[a.top_k][threadIdx.x];
      a.partial[tile * 16 + threadIdx.x] = sum;
    }
    __syncthreads();
  }
  State& state = states[a.state];
  if (threadIdx.x == 0 && atomicAdd(&state.blocks_ended, 1u) == gridDim.x - 1) {
    state.blocks_ended = 0;
    state.launch_number = number;
  }
}

template <int DOWN_TILES, int PER_LANE>
void launch_fused(const Fused& a, int blocks, size_t bytes, CUstream_st* stream) {
  CUDA_CHECK(cudaFuncSetAttribute(moe_fused_small_kernel<DOWN_TILES, PER_LANE>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  launch(
      {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads), .shared_bytes = bytes, .stream = stream},
      moe_fused_small_kernel<DOWN_TILES, PER_LANE>, a);
}

}  // namespace

int fused_state_of(CUstream_st* stream) {
  static std::mutex mutex;
  static std::map<CUstream_st*, int> state;
  const std::lock_guard lock(mutex);
  return state.try_emplace(stream, static_cast<int>(state.size()) % kFusedStates).first->second;
}

void moe_fused_small(const MoeArgs& args, CUstream_st* stream) {
  const MoeProblem& p = args.problem;
  const MoeWeights& w = *args.weights;
  int device = 0, blocks = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device));
  const PackedMatrix &gate_up = w.experts.front().gate_up, &down = w.experts.front().down;
  const int slots = p.top_k + (p.shared_width > 0 ? 1 : 0);
  const int items = (slots * static_cast<int>(gate_up.tiles) + blocks - 1) / blocks;
  if (args.rows > 1 || items > kItems) return moe_few_rows(args, stream);
  const Fused a = {
      .hidden = p.hidden,
      .width = p.width,
      .experts = p.experts,
      .top_k = p.top_k,
      .slots = slots,
      .state = fused_state_of(stream),
      .renormalise = p.renormalise,
      .given = args.selection.given,
      .shared_gate = p.shared_gate,
      .units_gate_up = gate_up.units,
      .tiles_gate_up = static_cast<int>(gate_up.tiles),
      .units_down = down.units,
      .tiles_down = static_cast<int>(down.tiles),
      .h_stride = down.units * down.unit_tiles * 64,
      .router_pairs = router_pairs(w.router.rows),
      .router = view_of(w.router),
      .pointers = w.pointers,
      .shared = {w.shared.gate_up.data, w.shared.gate_up.row_scale, w.shared.down.data, w.shared.down.row_scale},
      .x = args.x.as<uint16_t>(),
      .partial = args.partial.as<float>(),
      .ids = args.selection.ids,
      .weights = args.selection.weights};
  const size_t bytes = static_cast<size_t>(a.hidden + kWarps * a.h_stride) * 2 +
                       static_cast<size_t>(items * a.units_gate_up) * 16 * sizeof(float);
  const bool many = p.experts > 256;
  if (down.unit_tiles == 8)
    many ? launch_fused<8, 16>(a, blocks, bytes, stream) : launch_fused<8, 8>(a, blocks, bytes, stream);
  else
    many ? launch_fused<2, 16>(a, blocks, bytes, stream) : launch_fused<2, 8>(a, blocks, bytes, stream);
}

}  // namespace mettle::cuda
