// moe for few rows: see moe_few_rows.h.
#include "ops/cuda/moe_few_rows.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/moe_combine.h"
#include "ops/cuda/moe_few_rows_scratch.h"
#include "ops/cuda/product.h"

namespace mettle::cuda {
namespace {

// What the kernels take of one pass.
struct Pass {
  int rows, hidden, width, experts, top_k;
  bool renormalise, given, rides, shared_gate;  // rides: the shared expert is a slot
  int split_log2;                               // gate_up: 2^n warps share a tile row along k
  int units_gate_up, units_down, tiles_gate_up, tiles_down;
  const ExpertPointers* pointers;
  ExpertPointers shared;
  int logits_stride;
  const uint16_t* x;
  float* partial;
  int32_t* ids;
  float* weights;
};

// One warp a row chooses; then all threads make the slots.
template <int PER_LANE>
__global__ __launch_bounds__(1024) void moe_choose_kernel(Pass a, MoeScratch s) {
  __shared__ uint32_t mask[kMaxExperts];
  __shared__ int32_t begin_of[kMaxExperts];
  __shared__ int32_t chosen[kFewRows * kMaxTopK];
  __shared__ int32_t warp_slots[kMaxExperts / 32], warp_rows[kMaxExperts / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int e = threadIdx.x;  // thread e looks after expert e
  ptx::trigger();
  const ExpertPointers pointers = e < a.experts ? a.pointers[e] : ExpertPointers{};
  if (e < kMaxExperts) mask[e] = 0;
  __syncthreads();
  ptx::wait();
  if (warp < a.rows) {
    const float* l = s.logits + int64_t{warp} * a.logits_stride;
    int32_t* ids = a.ids + warp * a.top_k;
    float* weights = a.weights + warp * a.top_k;
    const float gate = a.shared_gate ? l[a.experts] : 0.f;
    const Choice c = a.given ? given_row(ids, weights, a.top_k, lane)
                             : choose_row<PER_LANE>(l, a.experts, a.top_k, a.renormalise, lane);
    if (lane < a.top_k) {
      chosen[warp * a.top_k + lane] = c.id;
      if (c.id >= 0) atomicOr(&mask[c.id], 1u << warp);  // -1: padding
      if (!a.given) ids[lane] = c.id, weights[lane] = c.weight;
    }
    if (lane == 0) s.shared_scale[warp] = a.shared_gate ? sigmoid(gate) : 1.f;
  }
  __syncthreads();
  // Slots in id order.
  const uint32_t m = e < kMaxExperts ? mask[e] : 0;
  const uint32_t active_here = __ballot_sync(0xffffffffu, m != 0);
  int rows_before = __popc(m);
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int n = __shfl_up_sync(0xffffffffu, rows_before, d);
    if (lane >= d) rows_before += n;
  }
  if (lane == 31 && warp < kMaxExperts / 32) warp_slots[warp] = __popc(active_here), warp_rows[warp] = rows_before;
  rows_before -= __popc(m);
  __syncthreads();
  int slot = __popc(active_here & ((1u << lane) - 1)), total = 0;
#pragma unroll
  for (int w = 0; w < kMaxExperts / 32; ++w) {
    if (w < warp) slot += warp_slots[w], rows_before += warp_rows[w];
    total += warp_slots[w];
  }
  if (m != 0) {
    begin_of[e] = rows_before;
    s.schedule->slot[slot] = {pointers, m, rows_before};
  }
  if (e >= total && e < kMaxExperts) s.schedule->slot[e] = {};
  __syncthreads();
  for (int i = threadIdx.x; i < a.rows * a.top_k; i += blockDim.x)
    s.schedule->position[i] =
        chosen[i] < 0 ? -1 : begin_of[chosen[i]] + __popc(mask[chosen[i]] & ((1u << (i / a.top_k)) - 1));
}

// Where the gate_up weights of each expert are; filled before the router's result is there.
struct GateUpPointers {
  const uint8_t* payload;
  const float* row_scale;
};

// The routing of a single row, done by every CTA for itself: cheaper than a launch. Slots are in the order of the
// choices; padding has no payload. The first CTA writes what the kernels after this one and the caller read.
template <int PER_LANE>
__device__ __forceinline__ GateUpPointers route_one_row(const Pass& a, const MoeScratch& s, int slot, int warp,
                                                        int lane) {
  __shared__ GateUpPointers table[PER_LANE * 32];
  __shared__ int32_t expert;
  for (int e = threadIdx.x; e < a.experts; e += blockDim.x)
    table[e] = {a.pointers[e].gate_up, a.pointers[e].gate_up_scale};
  ptx::wait();
  if (warp == 0) {
    const Choice c = a.given ? given_row(a.ids, a.weights, a.top_k, lane)
                             : choose_row<PER_LANE>(s.logits, a.experts, a.top_k, a.renormalise, lane);
    if (lane == slot) expert = c.id;
    if (blockIdx.x == 0 && slot == 0 && lane < a.top_k) {
      if (!a.given) a.ids[lane] = c.id, a.weights[lane] = c.weight;
      const bool padding = c.id < 0;
      s.schedule->slot[lane] = {padding ? ExpertPointers{} : a.pointers[c.id], padding ? 0u : 1u, lane};
      s.schedule->position[lane] = padding ? -1 : lane;
      if (lane == 0) s.shared_scale[0] = a.shared_gate ? sigmoid(s.logits[a.experts]) : 1.f;
    }
  }
  __syncthreads();
  return expert < 0 ? GateUpPointers{} : table[expert];
}

// Index of the n-th set bit (n < popc).
__device__ __forceinline__ int nth_bit(uint32_t mask, int n) {
  for (; n > 0; --n) mask &= mask - 1;
  return __ffs(static_cast<int>(mask)) - 1;
}

// The weights and rows of one slot in one product. The shared expert is a slot whose rows are all rows.
struct SlotWork {
  const uint8_t* payload;
  const float* row_scale;
  uint32_t mask;
  int begin, count;
};
__device__ __forceinline__ uint32_t all_rows(int rows) { return rows == 32 ? 0xffffffffu : (1u << rows) - 1; }

// blockIdx.y: slot (a riding shared expert is the last one), blockIdx.x: 8 >> split_log2 tiles. Columns of the mma are
// the slot's rows, 8 at a time; more than 8 rows read the weights again, out of L2.
// PER_LANE > 0: a single row, routed here. MANY: more units along k than warps that share a tile row.
template <int TILES, bool MANY, int PER_LANE>
__global__ __launch_bounds__(256, MANY ? 2 : 3) void moe_gate_up_kernel(Pass a, MoeScratch s) {
  using W = p64::Nvfp4Stream<TILES>;
  __shared__ float4 partial[8][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int split = 1 << a.split_log2, part = warp & (split - 1);
  const int tile = blockIdx.x * (8 >> a.split_log2) + (warp >> a.split_log2);
  const bool shared = a.rides && blockIdx.y == gridDim.y - 1;
  ptx::trigger();
  SlotWork w;
  if (shared) {
    w = {a.shared.gate_up, a.shared.gate_up_scale, all_rows(a.rows), a.rows * a.top_k, a.rows};
  } else if constexpr (PER_LANE > 0) {
    const int slot = static_cast<int>(blockIdx.y);
    const GateUpPointers p = route_one_row<PER_LANE>(a, s, slot, warp, lane);
    if (p.payload == nullptr) return;
    w = {p.payload, p.row_scale, 1u, slot, 1};
  } else {
    ptx::wait();
    const MoeSlot& slot = s.schedule->slot[blockIdx.y];
    w = {slot.weights.gate_up, slot.weights.gate_up_scale, slot.mask, slot.begin, __popc(slot.mask)};
    if (w.count == 0) return;
  }
  const bool active = tile < a.tiles_gate_up;
  const int units = a.units_gate_up;
  const uint8_t* payload = w.payload + int64_t{tile} * units * W::kBytes;
  const float gate_scale = active ? w.row_scale[tile * 16 + g] * W::kOut : 0.f;
  const float up_scale = active ? w.row_scale[tile * 16 + g + 8] * W::kOut : 0.f;
  for (int first = 0; first < w.count; first += 8) {
    float c[1][4] = {};
    const bool ok[1] = {active && first + g < w.count};
    const uint16_t* row[1] = {a.x + int64_t{ok[0] ? nth_bit(w.mask, first + g) : 0} * a.hidden};
    p64::stream_tile_row<W, 1, MANY, 4>(c, payload, units, part, split, a.hidden, row, ok, lane, active,
                                        shared && first == 0);
    if (split > 1) {
      partial[warp][lane] = make_float4(c[0][0], c[0][1], c[0][2], c[0][3]);
      __syncthreads();
      if (part == 0)
        for (int p = 1; p < split; ++p) {
          const float4 v = partial[warp + p][lane];
          c[0][0] += v.x, c[0][1] += v.y, c[0][2] += v.z, c[0][3] += v.w;
        }
      __syncthreads();
    }
    if (part == 0 && active)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int m = first + 2 * t + q;
        if (m < w.count)
          s.h[int64_t{w.begin + m} * a.width + tile * 8 + g] =
              __bfloat16_as_ushort(__float2bfloat16_rn(silu(c[0][q] * gate_scale) * (c[0][q + 2] * up_scale)));
      }
  }
}

__device__ __forceinline__ SlotWork down_work(const Pass& a, const MoeScratch& s, int slot, bool shared) {
  if (shared) return {a.shared.down, a.shared.down_scale, all_rows(a.rows), a.rows * a.top_k, a.rows};
  const MoeSlot& m = s.schedule->slot[slot];
  return {m.weights.down, m.weights.down_scale, m.mask, m.begin, __popc(m.mask)};
}

// One tile of 16 output rows of one slot by one warp: out[(begin + m) * stride + row].
template <int TILES, bool MANY>
__device__ __forceinline__ void down_tile(const Pass& a, const MoeScratch& s, const SlotWork& w, int tile, int lane,
                                          float* out, int stride) {
  using W = p64::Nvfp4Stream<TILES>;
  const int g = lane / 4, t = lane % 4, units = a.units_down;
  const uint8_t* payload = w.payload + int64_t{tile} * units * W::kBytes;
  const float scale0 = w.row_scale[tile * 16 + g] * W::kOut, scale1 = w.row_scale[tile * 16 + g + 8] * W::kOut;
  for (int first = 0; first < w.count; first += 8) {
    float c[1][4] = {};
    const bool ok[1] = {first + g < w.count};
    const uint16_t* row[1] = {s.h + int64_t{w.begin + (ok[0] ? first + g : 0)} * a.width};
    p64::stream_tile_row<W, 1, MANY, 4>(c, payload, units, 0, 1, a.width, row, ok, lane, true, false);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int m = first + 2 * t + (q & 1);
      if (m < w.count) out[int64_t{w.begin + m} * stride + g + 8 * (q >> 1)] = c[0][q] * (q < 2 ? scale0 : scale1);
    }
  }
}

// Down and combine for one or two rows. blockIdx.x: a tile of 16 output rows; a warp takes every ninth slot.
template <int TILES, bool MANY>
__global__ __launch_bounds__(288) void moe_down_combine_kernel(Pass a, MoeScratch s) {
  __shared__ float products[kMoeFusedRows * (kMaxTopK + 1) * 16];
  __shared__ float weights[kMoeFusedRows * kMaxTopK];
  __shared__ int32_t position[kMoeFusedRows * kMaxTopK];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x;
  ptx::trigger();
  ptx::wait();
  const int routed = a.rows * a.top_k;  // at most that many slots
  if (threadIdx.x < routed) {
    weights[threadIdx.x] = a.weights[threadIdx.x];
    position[threadIdx.x] = s.schedule->position[threadIdx.x];
  }
  for (int slot = warp; slot < routed + (a.rides ? 1 : 0); slot += 9) {
    const SlotWork w = down_work(a, s, slot, slot == routed);
    if (w.count > 0) down_tile<TILES, MANY>(a, s, w, tile, lane, products, 16);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.rows * 16; i += blockDim.x) {
    const int m = i / 16, r = i % 16;
    const Combination c = {weights + m * a.top_k, position + m * a.top_k, a.top_k, a.rides ? routed + m : -1,
                           s.shared_scale[m]};
    a.partial[int64_t{m} * a.hidden + tile * 16 + r] = combine(c, products + r, 16);
  }
}

// Down for more rows: blockIdx.y slot, blockIdx.x 8 tiles, one a warp.
template <int TILES, bool MANY>
__global__ __launch_bounds__(256, MANY ? 2 : 3) void moe_down_kernel(Pass a, MoeScratch s) {
  const int tile = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  ptx::trigger();
  ptx::wait();
  const SlotWork w = down_work(a, s, blockIdx.y, a.rides && blockIdx.y == gridDim.y - 1);
  if (w.count > 0 && tile < a.tiles_down) down_tile<TILES, MANY>(a, s, w, tile, lane, s.products + tile * 16, a.hidden);
}

template <int TILES, bool MANY>
void launch_gate_up(const Launch& l, const Pass& a, const MoeScratch& s) {
  launch(l,
         a.rows > 1         ? moe_gate_up_kernel<TILES, MANY, 0>
         : a.experts <= 256 ? moe_gate_up_kernel<TILES, MANY, 8>
                            : moe_gate_up_kernel<TILES, MANY, 16>,
         a, s);
}

template <int TILES, bool MANY>
void launch_down(Launch l, const Pass& a, const MoeScratch& s, bool combined, unsigned slots) {
  if (combined) {
    l.grid = dim3(static_cast<unsigned>(a.tiles_down));
    l.block = dim3(288);
    return launch(l, moe_down_combine_kernel<TILES, MANY>, a, s);
  }
  l.grid = dim3(static_cast<unsigned>((a.tiles_down + 7) / 8), slots);
  l.block = dim3(256);
  launch(l, moe_down_kernel<TILES, MANY>, a, s);
}

void run_pass(const MoeArgs& args, int first, int rows, CUstream_st* stream) {
  const MoeProblem& p = args.problem;
  const MoeWeights& w = *args.weights;
  const PackedMatrix &gate_up = w.experts.front().gate_up, &down = w.experts.front().down;
  const MoeScratch s = carve_moe_few_rows(p, rows, args.ws.data);
  const bool rides = shared_rides(p);
  Pass a = {.rows = rows,
            .hidden = p.hidden,
            .width = p.width,
            .experts = p.experts,
            .top_k = p.top_k,
            .renormalise = p.renormalise,
            .given = args.selection.given,
            .rides = rides,
            .shared_gate = p.shared_gate,
            .units_gate_up = gate_up.units,
            .units_down = down.units,
            .tiles_gate_up = static_cast<int>(gate_up.tiles),
            .tiles_down = static_cast<int>(down.tiles),
            .pointers = w.pointers,
            .logits_stride = static_cast<int>(w.router.rows),
            .x = args.x.as<uint16_t>() + int64_t{first} * p.hidden,
            .partial = args.partial.as<float>() + int64_t{first} * p.hidden,
            .ids = args.selection.ids + int64_t{first} * p.top_k,
            .weights = args.selection.weights + int64_t{first} * p.top_k};
  if (rides)
    a.shared = {w.shared.gate_up.data, w.shared.gate_up.row_scale, w.shared.down.data, w.shared.down.row_scale};
  while (a.split_log2 < 3 && (1 << a.split_log2) < a.units_gate_up) ++a.split_log2;

  product(w.router, a.x, rows, s.logits, stream);
  Launch l{.stream = stream};
  if (rows > 1) {
    l.grid = dim3(1);
    l.block = dim3(static_cast<unsigned>(std::max(kMaxExperts, 32 * rows)));
    launch(l, p.experts > 256 ? moe_choose_kernel<16> : moe_choose_kernel<8>, a, s);
  }
  const auto slots = static_cast<unsigned>(std::min(p.experts, rows * p.top_k) + (rides ? 1 : 0));
  const int per_cta = 8 >> a.split_log2;
  l.grid = dim3(static_cast<unsigned>((a.tiles_gate_up + per_cta - 1) / per_cta), slots);
  l.block = dim3(256);
  if (gate_up.unit_tiles == 2)
    launch_gate_up<2, true>(l, a, s);
  else if (gate_up.unit_tiles == 4)
    launch_gate_up<4, true>(l, a, s);
  else if (a.units_gate_up > 8)
    launch_gate_up<8, true>(l, a, s);
  else
    launch_gate_up<8, false>(l, a, s);

  const bool joins = p.shared_width > 0 && !rides;
  if (joins) {
    product(w.shared.gate_up, a.x, rows, s.shared_gate_up, stream);
    moe_swiglu(s.shared_gate_up, rows, p.shared_width, s.shared_h, stream);
    product(w.shared.down, s.shared_h, rows, s.products + int64_t{rows} * p.top_k * p.hidden, stream);
  }
  const bool combined = rows <= kMoeFusedRows && !joins;
  if (down.unit_tiles == 2)
    launch_down<2, true>(l, a, s, combined, slots);
  else if (down.unit_tiles == 4)
    launch_down<4, true>(l, a, s, combined, slots);
  else if (a.units_down > 1)
    launch_down<8, true>(l, a, s, combined, slots);
  else
    launch_down<8, false>(l, a, s, combined, slots);
  if (!combined)
    moe_combine({.rows = rows,
                 .hidden = p.hidden,
                 .top_k = p.top_k,
                 .has_shared = p.shared_width > 0,
                 .weights = a.weights,
                 .position = s.schedule->position,
                 .shared_scale = s.shared_scale,
                 .products = s.products,
                 .partial = a.partial},
                stream);
}

}  // namespace

void moe_few_rows(const MoeArgs& args, CUstream_st* stream) {
  for (int first = 0; first < args.rows; first += kFewRows)
    run_pass(args, first, std::min(kFewRows, args.rows - first), stream);
}

}  // namespace mettle::cuda
