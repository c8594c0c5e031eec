// The splits of a sequence's keys become one output: see attention_split.cu.
#include "ops/cuda/attention_flash.h"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/device/softmax.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

// Threads of a block by what they do: HD / 4 of them hold a packed row's output side by side, a group. Of few
// sequences all groups share the splits of one packed row; of many, which have few splits, a group or the two of a warp
// have a packed row of their own.
template <int HD, bool MANY>
struct Groups {
  static constexpr int kLanes = HD / 4, kAll = 256 / kLanes;
  static constexpr int kShare = !MANY ? kAll : kLanes < 32 ? 32 / kLanes : 1;  // of a packed row
  static constexpr int kRows = kAll / kShare;                                  // packed rows of a block
};

// blockIdx: sequence, kv head, packed rows. Sum over its splits, gate, bf16. Everything is asked for at once: the sums
// of a thread's first splits, the gate, and by every warp the stats of all splits.
template <int HD, bool MANY>
__global__ __launch_bounds__(256) void attention_merge_kernel(AttentionFlash a, SplitPart p, int most) {
  using G = Groups<HD, MANY>;
  constexpr int kAhead = 4;
  __shared__ float4 sums[G::kAll][G::kLanes];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, at = tid % G::kLanes;
  const int group_at = tid / G::kLanes, part = group_at % G::kShare;  // takes every kShare-th split
  const int kv_head = static_cast<int>(blockIdx.y);
  const int packed_row = static_cast<int>(blockIdx.z) * G::kRows + group_at / G::kShare;
  ptx::trigger();
  const DeviceSequence s = a.sequence[p.first_sequence + static_cast<int>(blockIdx.x)];
  const int group = a.group(), keys = s.ctx_len + s.q_len, step = split_keys(keys, most);
  const bool there = packed_row < s.q_len * group;
  const int own = there ? (keys + step - 1) / step : 0;
  const int row = s.first_row + packed_row / group, head = kv_head * group + packed_row % group;
  ptx::wait();
  if (s.q_len == 0 || !a.few(s.q_len)) return;

  const auto slot_of = [&](int split) {
    return ((int64_t{blockIdx.x} * p.splits + split) * a.kv_heads + kv_head) * p.rows + packed_row;
  };
  const auto sums_of = [&](int split) {
    return split < own ? reinterpret_cast<const float4*>(a.part + slot_of(split) * HD)[at] : make_float4(0, 0, 0, 0);
  };
  float4 ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = sums_of(part + i * G::kShare);
  float4 gate = make_float4(0, 0, 0, 0);
  if (a.gate && there && part == 0)
    gate = reinterpret_cast<const float4*>(a.qkv + int64_t{row} * a.qkv_width() + (2 * head + 1) * HD)[at];
  float2 stats[kMostSplits / 32];
  float best = -INFINITY, whole = 0;
#pragma unroll
  for (int i = 0; i < kMostSplits / 32; ++i) {
    const int split = lane + 32 * i;
    stats[i] = split < own ? reinterpret_cast<const float2*>(a.part_stats)[slot_of(split)] : make_float2(-INFINITY, 0);
    best = fmaxf(best, stats[i].x);
  }
  best = warp_max(best);
#pragma unroll
  for (int i = 0; i < kMostSplits / 32; ++i) {
    stats[i].x = power(stats[i].x, best, a.exponent);
    whole += stats[i].x * stats[i].y;
  }
  whole = warp_sum(whole);
  const auto weight_of = [&](int split) {  // all lanes take part
    const float low = __shfl_sync(kAllLanes, stats[0].x, split % 32);
    const float high = __shfl_sync(kAllLanes, stats[1].x, split % 32);
    return (split < 32 ? low : high) / whole;
  };
  static_assert(kMostSplits == 64);

  float4 o = make_float4(0, 0, 0, 0);
  const auto add = [&](float w, const float4& x) {
    o.x = fmaf(w, x.x, o.x), o.y = fmaf(w, x.y, o.y), o.z = fmaf(w, x.z, o.z), o.w = fmaf(w, x.w, o.w);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) add(weight_of(part + i * G::kShare), ahead[i]);
#pragma unroll 4
  for (int first = kAhead * G::kShare; first < own; first += G::kShare)
    add(weight_of(first + part), sums_of(first + part));
  if constexpr (G::kShare > 1) {
    sums[group_at][at] = o;
    __syncthreads();
    o = sums[group_at - part][at];
#pragma unroll
    for (int i = 1; i < G::kShare; ++i) add(1, sums[group_at - part + i][at]);
  }
  if (!there || part != 0) return;
  const auto gated = [&](float x, float z) {
    x *= a.v_scale;
    if (a.gate) x *= sigmoid(z);
    return x;
  };
  reinterpret_cast<uint2*>(a.core + (int64_t{row} * a.heads + head) * HD)[at] =
      make_uint2(pack_bf16(gated(o.x, gate.x), gated(o.y, gate.y)), pack_bf16(gated(o.z, gate.z), gated(o.w, gate.w)));
}

template <int HD, bool MANY>
void merge_in(const AttentionFlash& a, const SplitPart& p, cudaStream_t stream) {
  constexpr int kRows = Groups<HD, MANY>::kRows;
  launch({.grid = dim3(static_cast<unsigned>(p.sequences), static_cast<unsigned>(a.kv_heads),
                       static_cast<unsigned>((std::min(p.rows, a.most_q * a.group()) + kRows - 1) / kRows)),
          .block = dim3(256),
          .stream = stream},
         attention_merge_kernel<HD, MANY>, a, p, most_splits(a.sequences));
}

// With a block for every packed row 256 sequences have 4,096 blocks, most of one split: 25 us on an H200.
template <int HD>
void merge_of(const AttentionFlash& a, const SplitPart& p, cudaStream_t stream) {
  constexpr int kFewSplits = 4;  // all of them asked for at once
  most_splits(a.sequences) <= kFewSplits ? merge_in<HD, true>(a, p, stream) : merge_in<HD, false>(a, p, stream);
}

}  // namespace

void attention_merge(const AttentionFlash& a, const SplitPart& p, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (a.head_dim == 64) return merge_of<64>(a, p, on);
  if (a.head_dim == 128) return merge_of<128>(a, p, on);
  merge_of<256>(a, p, on);
}

}  // namespace mettle::cuda
