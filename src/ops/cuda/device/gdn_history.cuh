// The convolution's history of a sequence, [channel][3], oldest first, after the rows of a step.
#pragma once
#include "ops/cuda/gdn_recurrent.h"

namespace mettle::cuda {

// The last three inputs of a channel become its history. One thread owns a channel: it reads all before it writes.
struct GdnHistory {
  int channel = -1;
  float last[3];

  __device__ __forceinline__ void load(const GdnRecurrent& a, const DeviceSequence& s, int channels) {
    if (channel < 0) return;
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      const int local = s.q_len - 3 + j;
      last[j] = local >= 0       ? a.qkv[int64_t{s.first_row + local} * channels + channel]
                : s.state_in < 0 ? 0.f
                                 : a.conv_state[(int64_t{s.state_in} * channels + channel) * 3 + local + 3];
    }
  }
  __device__ __forceinline__ void store(const GdnRecurrent& a, const DeviceSequence& s, int channels) const {
    if (channel < 0) return;
#pragma unroll
    for (int j = 0; j < 3; ++j) a.conv_state[(int64_t{s.state_out} * channels + channel) * 3 + j] = last[j];
  }
};

// The threads of a value head write its own channels, and q's and k's where the head is the first of its key head.
// The i-th of these channels, or -1.
__device__ __forceinline__ int gdn_head_channel(const GdnRecurrent& a, int head, int i) {
  const int keys = a.key_heads * a.dk, heads_per_key = a.value_heads / a.key_heads;
  if (i < a.dv) return 2 * keys + head * a.dv + i;
  i -= a.dv;
  if (i >= 2 * a.dk || head % heads_per_key != 0) return -1;
  return (i < a.dk ? 0 : keys) + head / heads_per_key * a.dk + i % a.dk;
}

// What one thread of `threads` holds from early on, so that nobody waits for it; `finish` at the end.
struct GdnHeadHistory {
  GdnHistory held;
  __device__ __forceinline__ void load(const GdnRecurrent& a, const DeviceSequence& s, int head, int rank,
                                       int channels) {
    held.channel = gdn_head_channel(a, head, rank);
    held.load(a, s, channels);
  }
  __device__ __forceinline__ void finish(const GdnRecurrent& a, const DeviceSequence& s, int head, int rank,
                                         int threads, int channels) const {
    held.store(a, s, channels);
    for (int i = rank + threads; i < a.dv + 2 * a.dk; i += threads) {  // more channels than threads
      GdnHistory more;
      more.channel = gdn_head_channel(a, head, i);
      more.load(a, s, channels);
      more.store(a, s, channels);
    }
  }
};

}  // namespace mettle::cuda
