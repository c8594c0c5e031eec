// moe for few rows: see moe_few_rows.h.
#include "ops/cuda/moe_few_rows.h"

#include <cuda_bf16.h>

#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

using W = p64::Nvfp4Stream<8>;  // hidden and width in units of 512 k

struct Scratch {
  float* logits;        // [rows, experts + 1]
  float* shared_scale;  // [kFewRows]
  MoeSchedule* schedule;
  uint16_t* h;  // [rows * top_k, width] bf16 by position, then [rows, width] of the shared expert
};

int64_t round_up(int64_t n) { return (n + 255) / 256 * 256; }

Scratch carve(const MoeFewRowsArgs& a) {
  uint8_t* p = a.scratch;
  Scratch s = {};
  s.logits = reinterpret_cast<float*>(p);
  p += round_up(int64_t{a.rows} * (a.experts + 1) * 4);
  s.shared_scale = reinterpret_cast<float*>(p);
  p += round_up(kFewRows * 4);
  s.schedule = reinterpret_cast<MoeSchedule*>(p);
  p += round_up(sizeof(MoeSchedule));
  s.h = reinterpret_cast<uint16_t*>(p);
  return s;
}

// One warp a row: top_k by repeated maximum (ties: lowest id), weights, then the schedule of all rows.
__global__ __launch_bounds__(1024) void moe_choose_kernel(int rows, int experts, int top_k, bool renormalise,
                                                          bool shared_gate, const float* logits, int stride,
                                                          int32_t* ids, float* weights, float* shared_scale,
                                                          MoeSchedule* out) {
  constexpr int kPerLane = kMaxExperts / 32;
  __shared__ uint32_t mask[kMaxExperts];
  __shared__ int32_t chosen[kFewRows * kMaxTopK];
  __shared__ int32_t begin_of[kMaxExperts];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  ptx::trigger();
  for (int e = threadIdx.x; e < kMaxExperts; e += blockDim.x) mask[e] = 0;
  __syncthreads();
  ptx::wait();
  if (warp < rows) {
    const float* l = logits + int64_t{warp} * stride;
    float v[kPerLane];
    float most = -INFINITY;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = i * 32 + lane;
      v[i] = e < experts ? l[e] : -INFINITY;
      if (e < experts) finite = finite && isfinite(v[i]);
      most = fmaxf(most, v[i]);
    }
    finite = __all_sync(0xffffffffu, finite);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
    float all = 0;
    if (!renormalise) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) all += i * 32 + lane < experts ? expf(v[i] - most) : 0.f;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) all += __shfl_xor_sync(0xffffffffu, all, d);
    }
    float mine = 0, selected = 0;  // lane c keeps choice c
    for (int c = 0; c < top_k; ++c) {
      float best = -INFINITY;
      int id = kMaxExperts;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (v[i] > best) best = v[i], id = i * 32 + lane;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, d);
        const int other_id = __shfl_xor_sync(0xffffffffu, id, d);
        if (other > best || (other == best && other_id < id)) best = other, id = other_id;
      }
      // A row that is not finite still needs valid ids: its result is NaN through its weights.
      if (!finite) id = c, best = NAN;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (i * 32 + lane == id) v[i] = -INFINITY;
      const float p = expf(best - most);
      selected += p;
      if (lane == c) mine = finite ? p : NAN;
      if (lane == 0) {
        chosen[warp * top_k + c] = id;
        atomicOr(&mask[id], 1u << warp);
        ids[warp * top_k + c] = id;
      }
    }
    if (lane < top_k) weights[warp * top_k + lane] = mine / (renormalise ? selected : all);
    if (lane == 0) shared_scale[warp] = shared_gate ? 1.f / (1.f + expf(-l[experts])) : 1.f;
  }
  __syncthreads();
  if (warp == 0) {  // slots in id order: prefix over experts, 32 at a time
    int slot = 0, begin = 0;
    for (int e0 = 0; e0 < experts; e0 += 32) {
      const uint32_t m = e0 + lane < experts ? mask[e0 + lane] : 0;
      const uint32_t here = __ballot_sync(0xffffffffu, m != 0);
      int before = __popc(m);
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int n = __shfl_up_sync(0xffffffffu, before, d);
        if (lane >= d) before += n;
      }
      const int total = __shfl_sync(0xffffffffu, before, 31);
      if (m != 0) {
        const int s = slot + __popc(here & ((1u << lane) - 1));
        begin_of[e0 + lane] = begin + before - __popc(m);
        out->expert[s] = e0 + lane;
        out->begin[s] = begin + before - __popc(m);
      }
      slot += __popc(here);
      begin += total;
    }
    if (lane == 0) {
      out->active = slot;
      out->begin[slot] = begin;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * top_k; i += blockDim.x) {
    const int row = i / top_k, e = chosen[i];
    const int at = begin_of[e] + __popc(mask[e] & ((1u << row) - 1));
    out->position[i] = at;
    out->row[at] = row;
  }
}

__device__ __forceinline__ float silu(float v) { return v / (1.f + expf(-v)); }

// blockIdx.y: slot (the shared expert is the last one), blockIdx.x: 8 / SPLIT tiles. Columns of the mma are the slot's
// rows.
template <int NT, int SPLIT>
__global__ __launch_bounds__(256, NT == 1 ? 3 : 2) void moe_gate_up_kernel(MoeFewRowsArgs a, Scratch s) {
  constexpr int kTileRows = 8 / SPLIT;
  __shared__ float4 partial[8][NT][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = warp % SPLIT, tile = blockIdx.x * kTileRows + warp / SPLIT;
  const bool shared = a.has_shared && blockIdx.y == gridDim.y - 1;
  ptx::trigger();
  if (!shared) ptx::wait();
  const int slot = blockIdx.y;
  if (!shared && slot >= s.schedule->active) return;
  const int expert = shared ? 0 : s.schedule->expert[slot];
  const int begin = shared ? 0 : s.schedule->begin[slot], count = shared ? a.rows : s.schedule->begin[slot + 1] - begin;
  const P64View& w = shared ? a.shared_gate_up : a.gate_up.first;
  const uint8_t* payload =
      w.payload + (shared ? 0 : expert * a.gate_up.payload_stride) + int64_t{tile} * w.units * W::kBytes;
  const float* row_scale = w.row_scale + (shared ? 0 : expert * a.gate_up.scale_stride);
  uint16_t* h = s.h + (shared ? int64_t{a.rows} * a.top_k : begin) * a.width;
  const bool active = tile < w.tiles;
  for (int first = 0; first < count; first += 8 * NT) {
    float c[NT][4] = {};
    const uint16_t* row[NT];
    bool ok[NT];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const int m = first + g + 8 * n;
      ok[n] = active && m < count;
      const int source = !ok[n] ? 0 : shared ? m : s.schedule->row[begin + m];
      row[n] = a.x + int64_t{source} * a.hidden;
    }
    p64::stream_tile_row<W, NT, false>(c, payload, w.units, part, SPLIT, a.hidden, row, ok, lane, active,
                                       shared && first == 0);
    if constexpr (SPLIT > 1) {
#pragma unroll
      for (int n = 0; n < NT; ++n) partial[warp][n][lane] = make_float4(c[n][0], c[n][1], c[n][2], c[n][3]);
      __syncthreads();
      if (part == 0)
#pragma unroll
        for (int n = 0; n < NT; ++n)
          for (int p = 1; p < SPLIT; ++p) {
            const float4 v = partial[warp + p][n][lane];
            c[n][0] += v.x, c[n][1] += v.y, c[n][2] += v.z, c[n][3] += v.w;
          }
      __syncthreads();
    }
    if (part == 0 && active) {
      const float gate_scale = row_scale[tile * 16 + g] * W::kOut, up_scale = row_scale[tile * 16 + g + 8] * W::kOut;
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const int m = first + 8 * n + 2 * t + q;
          if (m < count)
            h[int64_t{m} * a.width + tile * 8 + g] =
                __bfloat16_as_ushort(__float2bfloat16_rn(silu(c[n][q] * gate_scale) * (c[n][q + 2] * up_scale)));
        }
    }
  }
}

// blockIdx.x: a tile of 16 output rows. Warps take slots in turn; products wait in shared memory by position and are
// summed per row in the order of its choices, the shared expert last.
template <int NT>
__global__ __launch_bounds__(288) void moe_down_kernel(MoeFewRowsArgs a, Scratch s) {
  extern __shared__ float products[];  // [rows * top_k + rows][16]
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int tile = blockIdx.x;
  ptx::trigger();
  ptx::wait();
  const int active = s.schedule->active, slots = active + (a.has_shared ? 1 : 0);
  for (int slot = warp; slot < slots; slot += warps) {
    const bool shared = slot == active;
    const P64View& w = shared ? a.shared_down : a.down.first;
    const int expert = shared ? 0 : s.schedule->expert[slot];
    const int begin = shared ? a.rows * a.top_k : s.schedule->begin[slot];
    const int count = shared ? a.rows : s.schedule->begin[slot + 1] - begin;
    const uint8_t* payload =
        w.payload + (shared ? 0 : expert * a.down.payload_stride) + int64_t{tile} * w.units * W::kBytes;
    const float* row_scale = w.row_scale + (shared ? 0 : expert * a.down.scale_stride) + tile * 16;
    for (int first = 0; first < count; first += 8 * NT) {
      float c[NT][4] = {};
      const uint16_t* row[NT];
      bool ok[NT];
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const int m = first + g + 8 * n;
        ok[n] = m < count;
        row[n] = s.h + int64_t{begin + (ok[n] ? m : 0)} * a.width;
      }
      p64::stream_tile_row<W, NT, true>(c, payload, w.units, 0, 1, a.width, row, ok, lane, true, false);
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const int m = first + 8 * n + 2 * t + (q & 1), r = g + 8 * (q >> 1);
          if (m < count) products[(begin + m) * 16 + r] = c[n][q] * W::kOut * row_scale[r];
        }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < a.rows * 16; i += blockDim.x) {
    const int m = i / 16, r = i % 16;
    float sum = 0;
    for (int k = 0; k < a.top_k; ++k)
      sum += a.weights[m * a.top_k + k] * products[s.schedule->position[m * a.top_k + k] * 16 + r];
    if (a.has_shared) sum += s.shared_scale[m] * products[(a.rows * a.top_k + m) * 16 + r];
    a.partial[int64_t{m} * a.hidden + tile * 16 + r] = sum;
  }
}

}  // namespace

int64_t moe_few_rows_scratch(const MoeFewRowsArgs& a) {
  return round_up(int64_t{a.rows} * (a.experts + 1) * 4) + round_up(kFewRows * 4) + round_up(sizeof(MoeSchedule)) +
         round_up(int64_t{a.rows} * (a.top_k + 1) * a.width * 2);
}

void moe_few_rows(const MoeFewRowsArgs& a) {
  CHECK(a.rows >= 1 && a.rows <= kFewRows && a.experts <= kMaxExperts && a.top_k <= kMaxTopK,
        "moe_few_rows: " + std::to_string(a.rows) + " rows, " + std::to_string(a.experts) + " experts, top " +
            std::to_string(a.top_k));
  CHECK(a.gate_up.first.unit_tiles == 8 && a.down.first.unit_tiles == 8 && a.gate_up.first.units <= 8,
        "moe_few_rows: hidden and width must be multiples of 512, hidden at most 4096");
  const Scratch s = carve(a);
  linear_bf16_mma(
      {.weight = a.router, .x = a.x, .y = s.logits, .rows = a.rows, .stream = a.stream, .dependent = a.dependent});
  launch({.grid = dim3(1),
          .block = dim3(static_cast<unsigned>(32 * std::max(a.rows, 4))),
          .stream = a.stream,
          .dependent = a.dependent},
         moe_choose_kernel, a.rows, a.experts, a.top_k, a.renormalise, a.shared_gate, s.logits, a.router.rows, a.ids,
         a.weights, s.shared_scale, s.schedule);
  const int slots = std::min(a.experts, a.rows * a.top_k) + (a.has_shared ? 1 : 0);
  const int units = a.gate_up.first.units, split = units > 4 ? 8 : units > 2 ? 4 : units;
  const dim3 grid(static_cast<unsigned>((a.gate_up.first.tiles + 8 / split - 1) / (8 / split)),
                  static_cast<unsigned>(slots));
  const Launch gate_up{.grid = grid, .block = dim3(256), .stream = a.stream, .dependent = a.dependent};
  const bool narrow = a.rows <= 8;
  if (split == 8) launch(gate_up, narrow ? moe_gate_up_kernel<1, 8> : moe_gate_up_kernel<2, 8>, a, s);
  if (split == 4) launch(gate_up, narrow ? moe_gate_up_kernel<1, 4> : moe_gate_up_kernel<2, 4>, a, s);
  if (split == 2) launch(gate_up, narrow ? moe_gate_up_kernel<1, 2> : moe_gate_up_kernel<2, 2>, a, s);
  if (split == 1) launch(gate_up, narrow ? moe_gate_up_kernel<1, 1> : moe_gate_up_kernel<2, 1>, a, s);
  const size_t shared_bytes = static_cast<size_t>(a.rows) * (static_cast<size_t>(a.top_k) + 1) * 64;
  launch({.grid = dim3(static_cast<unsigned>(a.down.first.tiles)),
          .block = dim3(288),
          .shared_bytes = shared_bytes,
          .stream = a.stream,
          .dependent = a.dependent},
         narrow ? moe_down_kernel<1> : moe_down_kernel<2>, a, s);
}

}  // namespace mettle::cuda
