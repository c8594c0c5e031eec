// The splits of a sequence's keys become one output: see attention_split.cu.
#include "ops/cuda/attention_flash.h"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/device/softmax.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

// blockIdx: sequence, kv head, packed row. Sum over its splits, gate, bf16. Everything is asked for at once: the sums
// of a thread's first splits, the gate, and by every warp the stats of all splits.
template <int HD>
__global__ __launch_bounds__(256) void attention_merge_kernel(AttentionFlash a, SplitPart p, int most) {
  constexpr int kGroups = 256 / (HD / 4);  // each takes every kGroups-th split
  constexpr int kAhead = 4;
  __shared__ float4 sums[kGroups][HD / 4];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  const int kv_head = static_cast<int>(blockIdx.y), packed_row = static_cast<int>(blockIdx.z);
  ptx::trigger();
  const DeviceSequence s = a.sequence[p.first_sequence + static_cast<int>(blockIdx.x)];
  const int group = a.group(), keys = s.ctx_len + s.q_len, step = split_keys(keys, most),
            own = (keys + step - 1) / step;
  const int row = s.first_row + packed_row / group, head = kv_head * group + packed_row % group;
  ptx::wait();
  if (s.q_len == 0 || !a.few(s.q_len) || packed_row >= s.q_len * group) return;

  const auto slot_of = [&](int split) {
    return ((int64_t{blockIdx.x} * p.splits + split) * a.kv_heads + kv_head) * p.rows + packed_row;
  };
  const int part = tid / (HD / 4), at = tid % (HD / 4);
  const auto sums_of = [&](int split) {
    return split < own ? reinterpret_cast<const float4*>(a.part + slot_of(split) * HD)[at] : make_float4(0, 0, 0, 0);
  };
  float4 ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = sums_of(part + i * kGroups);
  float gate = 0;
  if (a.gate && tid < HD) gate = a.qkv[int64_t{row} * a.qkv_width() + (2 * head + 1) * HD + tid];
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

  float4 sum = make_float4(0, 0, 0, 0);
  const auto add = [&](float w, const float4& o) {
    sum.x = fmaf(w, o.x, sum.x), sum.y = fmaf(w, o.y, sum.y), sum.z = fmaf(w, o.z, sum.z), sum.w = fmaf(w, o.w, sum.w);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) add(weight_of(part + i * kGroups), ahead[i]);
#pragma unroll 4
  for (int first = kAhead * kGroups; first < own; first += kGroups) add(weight_of(first + part), sums_of(first + part));
  sums[part][at] = sum;
  __syncthreads();
  if (tid >= HD) return;
  float o = 0;
#pragma unroll
  for (int i = 0; i < kGroups; ++i) o += reinterpret_cast<const float*>(sums[i])[tid];
  o *= a.v_scale;
  if (a.gate) o *= sigmoid(gate);
  a.core[(int64_t{row} * a.heads + head) * HD + tid] = to_bf16(o);
}

template <int HD>
void merge_of(const AttentionFlash& a, const SplitPart& p, cudaStream_t stream) {
  launch({.grid = dim3(static_cast<unsigned>(p.sequences), static_cast<unsigned>(a.kv_heads),
                       static_cast<unsigned>(std::min(p.rows, a.most_q * a.group()))),
          .block = dim3(256),
          .stream = stream},
         attention_merge_kernel<HD>, a, p, most_splits(a.sequences));
}

}  // namespace

void attention_merge(const AttentionFlash& a, const SplitPart& p, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (a.head_dim == 64) return merge_of<64>(a, p, on);
  if (a.head_dim == 128) return merge_of<128>(a, p, on);
  merge_of<256>(a, p, on);
}

}  // namespace mettle::cuda
