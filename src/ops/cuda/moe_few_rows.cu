// moe for few rows: see moe_few_rows.h.
#include "ops/cuda/moe_few_rows.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <type_traits>

#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

using W = p64::Nvfp4Stream<8>;  // hidden and width in units of 512 k
constexpr int kFusedRows = 2;   // up to here down and combine are one kernel: the products of all slots fit one pass

struct Scratch {
  float* logits;        // [rows, experts + 1]
  float* shared_scale;  // [kFewRows]
  MoeSchedule* schedule;
  uint16_t* h;      // [rows * top_k, width] bf16 by position, then [rows, width] of the shared expert
  float* products;  // [rows * top_k + rows, hidden]: expert outputs by position
};

int64_t round_up(int64_t n) { return (n + 255) / 256 * 256; }

Scratch carve(const MoeFewRowsArgs& a, int64_t* bytes) {
  uint8_t* p = a.scratch;
  const auto take = [&](int64_t n) {
    uint8_t* at = p;
    p += round_up(n);
    return at;
  };
  const int64_t pairs = int64_t{a.rows} * (a.top_k + 1);
  Scratch s = {};
  s.logits = reinterpret_cast<float*>(take(int64_t{a.rows} * (a.experts + 1) * 4));
  s.shared_scale = reinterpret_cast<float*>(take(kFewRows * 4));
  s.schedule = reinterpret_cast<MoeSchedule*>(take(sizeof(MoeSchedule)));
  s.h = reinterpret_cast<uint16_t*>(take(pairs * a.width * 2));
  s.products = reinterpret_cast<float*>(take(a.rows > kFusedRows ? pairs * a.hidden * 4 : 0));
  *bytes = p - a.scratch;
  return s;
}

// Order-preserving map of finite floats to unsigned, so that one redux finds a maximum.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t bits = __float_as_uint(v);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// One warp chooses the top_k of a row by repeated maximum (ties: lowest id). Lane c returns choice c and its weight; a
// row that is not finite still gets valid ids and becomes NaN through its weights. PER_LANE * 32 >= experts.
struct Choice {
  int id;
  float weight;
};
template <int PER_LANE>
__device__ __forceinline__ Choice choose_row(const float* l, int experts, int top_k, bool renormalise, int lane) {
  uint32_t key[PER_LANE];  // 0: not there, or taken
  bool finite = true;
#pragma unroll
  for (int i = 0; i < PER_LANE; ++i) {
    const int e = i * 32 + lane;
    const float v = e < experts ? l[e] : 0.f;
    finite = finite && isfinite(v);
    key[i] = e < experts ? ordered(v) : 0u;
  }
  finite = __all_sync(0xffffffffu, finite);
  float most = 0, selected = 0;
  Choice mine = {lane, NAN};
  for (int c = 0; c < top_k; ++c) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) best = max(best, key[i]);
    const uint32_t top = __reduce_max_sync(0xffffffffu, best);
    uint32_t at = kMaxExperts;
#pragma unroll
    for (int i = PER_LANE - 1; i >= 0; --i) at = key[i] == top ? static_cast<uint32_t>(i * 32 + lane) : at;
    const int id = static_cast<int>(__reduce_min_sync(0xffffffffu, at));
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) key[i] = i * 32 + lane == id ? 0u : key[i];
    const float value = __uint_as_float((top & 0x80000000u) != 0 ? top & 0x7FFFFFFFu : ~top);
    if (c == 0) most = value;
    const float p = expf(value - most);
    selected += p;
    if (lane == c && finite) mine = {id, p};
  }
  if (!renormalise) {
    selected = 0;
    for (int e = lane; e < experts; e += 32) selected += expf(l[e] - most);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) selected += __shfl_xor_sync(0xffffffffu, selected, d);
  }
  mine.weight /= selected;
  return mine;
}

__device__ __forceinline__ float sigmoid(float v) { return 1.f / (1.f + expf(-v)); }

// One warp a row chooses; then all threads make the slots.
template <int PER_LANE>
__global__ __launch_bounds__(1024) void moe_choose_kernel(int rows, int experts, int top_k, bool renormalise,
                                                          bool shared_gate, const float* logits, int stride,
                                                          int32_t* ids, float* weights, float* shared_scale,
                                                          MoeSchedule* out) {
  __shared__ uint32_t mask[kMaxExperts];
  __shared__ int32_t begin_of[kMaxExperts];
  __shared__ int32_t chosen[kFewRows * kMaxTopK];
  __shared__ int32_t warp_slots[kMaxExperts / 32], warp_rows[kMaxExperts / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  ptx::trigger();
  for (int e = threadIdx.x; e < kMaxExperts; e += blockDim.x) mask[e] = 0;
  __syncthreads();
  ptx::wait();
  if (warp < rows) {
    const float* l = logits + int64_t{warp} * stride;
    const float gate = shared_gate ? l[experts] : 0.f;
    const Choice c = choose_row<PER_LANE>(l, experts, top_k, renormalise, lane);
    if (lane < top_k) {
      chosen[warp * top_k + lane] = c.id;
      atomicOr(&mask[c.id], 1u << warp);
      ids[warp * top_k + lane] = c.id;
      weights[warp * top_k + lane] = c.weight;
    }
    if (lane == 0) shared_scale[warp] = shared_gate ? sigmoid(gate) : 1.f;
  }
  __syncthreads();
  // Slots in id order: thread e looks after expert e.
  const int e = threadIdx.x;
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
    out->slot[slot] = {e, rows_before, m, 0};
  }
  if (e >= total && e < kMaxExperts) out->slot[e] = {0, 0, 0, 0};
  if (e == 0) out->active = total;
  __syncthreads();
  for (int i = threadIdx.x; i < rows * top_k; i += blockDim.x)
    out->position[i] = begin_of[chosen[i]] + __popc(mask[chosen[i]] & ((1u << (i / top_k)) - 1));
}

__device__ __forceinline__ float silu(float v) { return v / (1.f + expf(-v)); }

// The routing of a single row, done by every CTA for itself: cheaper than a launch. Slots are in the order of the
// choices. The first CTA writes what the kernels after this one and the caller read.
template <int PER_LANE>
__device__ __forceinline__ int route_one_row(const MoeFewRowsArgs& a, const Scratch& s, int slot, int warp, int lane) {
  __shared__ int32_t expert;
  if (warp == 0) {
    const Choice c = choose_row<PER_LANE>(s.logits, a.experts, a.top_k, a.renormalise, lane);
    if (lane == slot) expert = c.id;
    if (blockIdx.x == 0 && slot == 0 && lane < a.top_k) {
      a.ids[lane] = c.id;
      a.weights[lane] = c.weight;
      s.schedule->slot[lane] = {c.id, lane, 1u, 0};
      s.schedule->position[lane] = lane;
      if (lane == 0) s.shared_scale[0] = a.shared_gate ? sigmoid(s.logits[a.experts]) : 1.f;
    }
  }
  __syncthreads();
  return expert;
}

// Index of the n-th set bit (n < popc).
__device__ __forceinline__ int nth_bit(uint32_t mask, int n) {
  for (; n > 0; --n) mask &= mask - 1;
  return __ffs(static_cast<int>(mask)) - 1;
}

// A slot's record and weights. The shared expert is a slot whose rows are all rows.
struct SlotWork {
  const uint8_t* payload;
  const float* row_scale;
  uint32_t mask;
  int begin, count;
};
__device__ __forceinline__ SlotWork routed_work(const MoeSlot& s, const ExpertBank& bank) {
  return {bank.first.payload + s.expert * bank.payload_stride, bank.first.row_scale + s.expert * bank.scale_stride,
          s.mask, s.begin, __popc(s.mask)};
}
__device__ __forceinline__ SlotWork shared_work(const P64View& w, int rows, int top_k) {
  return {w.payload, w.row_scale, rows == 32 ? 0xffffffffu : (1u << rows) - 1, rows * top_k, rows};
}

// blockIdx.y: slot (the shared expert is the last one), blockIdx.x: 8 / SPLIT tiles. Columns of the mma are the slot's
// rows, 8 at a time; more than 8 rows read the weights again, out of L2.
// PER_LANE > 0: a single row, routed here.
template <int SPLIT, int PER_LANE>
__global__ __launch_bounds__(256, 2) void moe_gate_up_kernel(MoeFewRowsArgs a, Scratch s) {
  constexpr int kTileRows = 8 / SPLIT;
  __shared__ float4 partial[8][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = warp % SPLIT, tile = blockIdx.x * kTileRows + warp / SPLIT;
  const bool shared = a.has_shared && blockIdx.y == gridDim.y - 1;
  ptx::trigger();
  if (!shared) ptx::wait();
  SlotWork w;
  if (shared) {
    w = shared_work(a.shared_gate_up, a.rows, a.top_k);
  } else if constexpr (PER_LANE > 0) {
    const int slot = static_cast<int>(blockIdx.y);
    w = routed_work({route_one_row<PER_LANE>(a, s, slot, warp, lane), slot, 1u, 0}, a.gate_up);
  } else {
    w = routed_work(s.schedule->slot[blockIdx.y], a.gate_up);
  }
  if (w.count == 0) return;
  const bool active = tile < a.gate_up.first.tiles;
  const int units = a.gate_up.first.units;
  const uint8_t* payload = w.payload + int64_t{tile} * units * W::kBytes;
  const float gate_scale = active ? w.row_scale[tile * 16 + g] * W::kOut : 0.f;
  const float up_scale = active ? w.row_scale[tile * 16 + g + 8] * W::kOut : 0.f;
  uint16_t* h = s.h + int64_t{w.begin} * a.width;
  for (int first = 0; first < w.count; first += 8) {
    float c[1][4] = {};
    const bool ok[1] = {active && first + g < w.count};
    const uint16_t* row[1] = {a.x + int64_t{ok[0] ? nth_bit(w.mask, first + g) : 0} * a.hidden};
    p64::stream_tile_row<W, 1, false>(c, payload, units, part, SPLIT, a.hidden, row, ok, lane, active,
                                      shared && first == 0);
    if constexpr (SPLIT > 1) {
      partial[warp][lane] = make_float4(c[0][0], c[0][1], c[0][2], c[0][3]);
      __syncthreads();
      if (part == 0)
        for (int p = 1; p < SPLIT; ++p) {
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
          h[int64_t{m} * a.width + tile * 8 + g] =
              __bfloat16_as_ushort(__float2bfloat16_rn(silu(c[0][q] * gate_scale) * (c[0][q + 2] * up_scale)));
      }
  }
}

// One tile of 16 output rows of one slot by one warp: out[(begin + m) * stride + row].
template <bool MANY>
__device__ __forceinline__ void down_tile(const MoeFewRowsArgs& a, const Scratch& s, const SlotWork& w, int tile,
                                          int lane, float* out, int stride) {
  const int g = lane / 4, t = lane % 4, units = a.down.first.units;
  const uint8_t* payload = w.payload + int64_t{tile} * units * W::kBytes;
  const float scale0 = w.row_scale[tile * 16 + g] * W::kOut, scale1 = w.row_scale[tile * 16 + g + 8] * W::kOut;
  for (int first = 0; first < w.count; first += 8) {
    float c[1][4] = {};
    const bool ok[1] = {first + g < w.count};
    const uint16_t* row[1] = {s.h + int64_t{w.begin + (ok[0] ? first + g : 0)} * a.width};
    p64::stream_tile_row<W, 1, MANY>(c, payload, units, 0, 1, a.width, row, ok, lane, true, false);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int m = first + 2 * t + (q & 1);
      if (m < w.count) out[int64_t{w.begin + m} * stride + g + 8 * (q >> 1)] = c[0][q] * (q < 2 ? scale0 : scale1);
    }
  }
}

// Sum over the choices of a row in their order, the shared expert last.
__device__ __forceinline__ float combine(const MoeFewRowsArgs& a, const float* weights, const int32_t* position,
                                         float shared_scale, const float* products, int stride, int m) {
  float sum = 0;
  for (int k = 0; k < a.top_k; ++k) sum += weights[k] * products[int64_t{position[k]} * stride];
  if (a.has_shared) sum += shared_scale * products[int64_t{a.rows * a.top_k + m} * stride];
  return sum;
}

// Down and combine for one or two rows. blockIdx.x: a tile of 16 output rows; a warp takes every ninth slot.
template <bool MANY>
__global__ __launch_bounds__(288) void moe_down_combine_kernel(MoeFewRowsArgs a, Scratch s) {
  __shared__ float products[kFusedRows * (kMaxTopK + 1) * 16];
  __shared__ float weights[kFusedRows * kMaxTopK];
  __shared__ int32_t position[kFusedRows * kMaxTopK];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x;
  ptx::trigger();
  ptx::wait();
  const int routed = a.rows * a.top_k;  // at most that many slots
  if (threadIdx.x < routed) {
    weights[threadIdx.x] = a.weights[threadIdx.x];
    position[threadIdx.x] = s.schedule->position[threadIdx.x];
  }
  for (int slot = warp; slot < routed + (a.has_shared ? 1 : 0); slot += 9) {
    const bool shared = slot == routed;
    const SlotWork w =
        shared ? shared_work(a.shared_down, a.rows, a.top_k) : routed_work(s.schedule->slot[slot], a.down);
    if (w.count > 0) down_tile<MANY>(a, s, w, tile, lane, products, 16);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.rows * 16; i += blockDim.x) {
    const int m = i / 16, r = i % 16;
    a.partial[int64_t{m} * a.hidden + tile * 16 + r] =
        combine(a, weights + m * a.top_k, position + m * a.top_k, s.shared_scale[m], products + r, 16, m);
  }
}

// Down for more rows: blockIdx.y slot, blockIdx.x 8 tiles, one a warp.
template <bool MANY>
__global__ __launch_bounds__(256, MANY ? 2 : 3) void moe_down_kernel(MoeFewRowsArgs a, Scratch s) {
  const int tile = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool shared = a.has_shared && blockIdx.y == gridDim.y - 1;
  ptx::trigger();
  ptx::wait();
  const SlotWork w =
      shared ? shared_work(a.shared_down, a.rows, a.top_k) : routed_work(s.schedule->slot[blockIdx.y], a.down);
  if (w.count > 0 && tile < a.down.first.tiles) down_tile<MANY>(a, s, w, tile, lane, s.products + tile * 16, a.hidden);
}

__global__ __launch_bounds__(256) void moe_combine_kernel(MoeFewRowsArgs a, Scratch s) {
  const int m = blockIdx.y, r = blockIdx.x * 256 + threadIdx.x;
  ptx::trigger();
  ptx::wait();
  if (r < a.hidden)
    a.partial[int64_t{m} * a.hidden + r] = combine(a, a.weights + m * a.top_k, s.schedule->position + m * a.top_k,
                                                   s.shared_scale[m], s.products + r, a.hidden, m);
}

}  // namespace

int64_t moe_few_rows_scratch(const MoeFewRowsArgs& a) {
  int64_t bytes = 0;
  carve(a, &bytes);
  return bytes;
}

void moe_few_rows(const MoeFewRowsArgs& a) {
  CHECK(a.rows >= 1 && a.rows <= kFewRows && a.experts <= kMaxExperts && a.top_k <= kMaxTopK && a.top_k <= a.experts,
        "moe_few_rows: " + std::to_string(a.rows) + " rows, " + std::to_string(a.experts) + " experts, top " +
            std::to_string(a.top_k));
  CHECK(a.gate_up.first.unit_tiles == 8 && a.down.first.unit_tiles == 8 && a.gate_up.first.units <= 8,
        "moe_few_rows: hidden and width must be multiples of 512, hidden at most 4096");
  int64_t bytes = 0;
  const Scratch s = carve(a, &bytes);
  Launch l{.stream = a.stream, .dependent = a.dependent};
  linear_bf16_mma(
      {.weight = a.router, .x = a.x, .y = s.logits, .rows = a.rows, .stream = a.stream, .dependent = a.dependent});
  const bool wide = a.experts > 256;
  if (a.rows > 1) {
    l.grid = dim3(1);
    l.block = dim3(static_cast<unsigned>(std::max(kMaxExperts, 32 * a.rows)));
    launch(l, wide ? moe_choose_kernel<16> : moe_choose_kernel<8>, a.rows, a.experts, a.top_k, a.renormalise,
           a.shared_gate, s.logits, a.router.rows, a.ids, a.weights, s.shared_scale, s.schedule);
  }
  const auto slots = static_cast<unsigned>(std::min(a.experts, a.rows * a.top_k) + (a.has_shared ? 1 : 0));
  l.block = dim3(256);
  const auto gate_up = [&](auto split) {
    constexpr int kSplit = decltype(split)::value;
    l.grid = dim3(static_cast<unsigned>((a.gate_up.first.tiles + 8 / kSplit - 1) / (8 / kSplit)), slots);
    launch(l,
           a.rows > 1 ? moe_gate_up_kernel<kSplit, 0>
           : wide     ? moe_gate_up_kernel<kSplit, 16>
                      : moe_gate_up_kernel<kSplit, 8>,
           a, s);
  };
  const int units = a.gate_up.first.units;
  if (units > 4)
    gate_up(std::integral_constant<int, 8>{});
  else if (units > 2)
    gate_up(std::integral_constant<int, 4>{});
  else if (units == 2)
    gate_up(std::integral_constant<int, 2>{});
  else
    gate_up(std::integral_constant<int, 1>{});
  const bool many = a.down.first.units > 1;
  if (a.rows <= kFusedRows) {
    l.grid = dim3(static_cast<unsigned>(a.down.first.tiles));
    l.block = dim3(288);
    launch(l, many ? moe_down_combine_kernel<true> : moe_down_combine_kernel<false>, a, s);
    return;
  }
  l.grid = dim3(static_cast<unsigned>((a.down.first.tiles + 7) / 8), slots);
  launch(l, many ? moe_down_kernel<true> : moe_down_kernel<false>, a, s);
  l.grid = dim3(static_cast<unsigned>((a.hidden + 255) / 256), static_cast<unsigned>(a.rows));
  launch(l, moe_combine_kernel, a, s);
}

}  // namespace mettle::cuda
