// The convolution's history of a sequence, [channel][3], oldest first, after the rows of a step.
#pragma once
#include "ops/cuda/gdn_recurrent.h"

namespace mettle::cuda {

// The last three inputs of a channel become its history. One thread owns a channel: it reads all before it writes.
__device__ __forceinline__ void gdn_history(const GdnRecurrent& a, const DeviceSequence& s, int channels, int channel) {
  float last[3];
#pragma unroll
  for (int j = 0; j < 3; ++j) {
    const int local = s.q_len - 3 + j;
    last[j] = local >= 0       ? a.qkv[int64_t{s.first_row + local} * channels + channel]
              : s.state_in < 0 ? 0.f
                               : a.conv_state[(int64_t{s.state_in} * channels + channel) * 3 + local + 3];
  }
#pragma unroll
  for (int j = 0; j < 3; ++j) a.conv_state[(int64_t{s.state_out} * channels + channel) * 3 + j] = last[j];
}

// What the threads of a value head write of it together: its own channels, and q's and k's where the head is the first
// of its key head. `rank`: of so many threads.
__device__ __forceinline__ void gdn_head_history(const GdnRecurrent& a, const DeviceSequence& s, int head, int rank,
                                                 int threads) {
  const int keys = a.key_heads * a.dk, channels = 2 * keys + a.value_heads * a.dv;
  for (int i = rank; i < a.dv; i += threads) gdn_history(a, s, channels, 2 * keys + head * a.dv + i);
  const int heads_per_key = a.value_heads / a.key_heads;
  if (head % heads_per_key != 0) return;
  for (int i = rank; i < 2 * a.dk; i += threads)
    gdn_history(a, s, channels, (i < a.dk ? 0 : keys) + head / heads_per_key * a.dk + i % a.dk);
}

}  // namespace mettle::cuda
