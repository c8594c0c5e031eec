// What comes before the delta rule, for any number of rows: causal convolution of width 4 with silu, L2 norm of q and
// k, gates. Only reads the convolution history; who runs afterwards writes the new one (gdn_history.cuh).
#pragma once
#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/gdn_recurrent.h"

namespace mettle::cuda {

inline constexpr int kGdnConvWarps = 8;
// Warps of a row: one per q, k and value head, and one for the gates.
inline int gdn_conv_units(const GdnRecurrent& a) { return 2 * a.key_heads + a.value_heads + 1; }

// Four channels of a row: the taps, and the four inputs, oldest first.
struct GdnChannels {
  float4 tap[4];
  float past[4][4];  // [input][channel]

  // Before the wait for this step's kernels: see gdn_recurrent.cu on what the step before has written. `local`: index
  // of the row in its sequence.
  __device__ __forceinline__ void load_early(const GdnRecurrent& a, int channel, int local, const float* history) {
#pragma unroll
    for (int c = 0; c < 4; ++c) tap[c] = *reinterpret_cast<const float4*>(a.taps + int64_t{channel + c} * 4);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        past[j][c] = history != nullptr && local + j < 3 ? history[int64_t{channel + c} * 3 + local + j] : 0.f;
  }
  __device__ __forceinline__ void load(const GdnRecurrent& a, int channels, int channel, int row, int local) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (local - 3 + j < 0) continue;
      const float4 v = *reinterpret_cast<const float4*>(a.qkv + int64_t{row - 3 + j} * channels + channel);
      past[j][0] = v.x, past[j][1] = v.y, past[j][2] = v.z, past[j][3] = v.w;
    }
  }
  __device__ __forceinline__ float4 convolve() const {
    float out[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      float sum = tap[c].x * past[0][c];
      sum = fmaf(tap[c].y, past[1][c], sum);
      sum = fmaf(tap[c].z, past[2][c], sum);
      out[c] = silu(fmaf(tap[c].w, past[3][c], sum));
    }
    return make_float4(out[0], out[1], out[2], out[3]);
  }
};

__device__ __forceinline__ void gdn_gates(const GdnRecurrent& a, int row, int lane) {
  const float* ba = a.ba + int64_t{row} * 2 * a.value_heads;
  for (int h = lane; h < a.value_heads; h += 32) {
    const float rate = expf(a.a_log[h]) * softplus(ba[a.value_heads + h] + a.dt_bias[h]);
    reinterpret_cast<float2*>(a.gates)[int64_t{row} * a.value_heads + h] = make_float2(sigmoid(ba[h]), expf(-rate));
  }
}

// blockIdx.x: row; blockIdx.y: eight units of it. Rows that are padding only get a zero core.
[[maybe_unused]] static __global__ __launch_bounds__(kGdnConvWarps * 32) void gdn_conv_kernel(GdnRecurrent a,
                                                                                              int units) {
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % 32);
  const int unit = static_cast<int>(blockIdx.y * kGdnConvWarps + threadIdx.x / 32);
  ptx::trigger();
  const int sequence = a.row_sequence[row];
  const int key_units = 2 * a.key_heads, channels = key_units * a.dk + a.value_heads * a.dv;
  const bool value = unit >= key_units;
  const int width = value ? a.dv : a.dk;
  const int first = value ? key_units * a.dk + (unit - key_units) * a.dv : unit * a.dk;
  const bool convolves = sequence >= 0 && unit < units - 1;
  GdnChannels in[2];
  int local = 0;
  if (convolves) {
    const DeviceSequence s = a.sequence[sequence];
    const float* history = s.state_in < 0 ? nullptr : a.conv_state + int64_t{s.state_in} * channels * 3;
    local = row - s.first_row;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (lane * 4 + 128 * j < width) in[j].load_early(a, first + lane * 4 + 128 * j, local, history);
  }
  ptx::wait();
  if (unit >= units) return;
  if (unit == units - 1) {
    if (sequence >= 0) gdn_gates(a, row, lane);
    return;
  }
  if (sequence < 0) {
    if (value)
      for (int i = lane; i < width; i += 32) a.core[(int64_t{row} * a.value_heads + unit - key_units) * a.dv + i] = 0;
    return;
  }
  float4 kept[2];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane * 4 + 128 * j;
    kept[j] = make_float4(0, 0, 0, 0);
    if (i >= width) continue;
    in[j].load(a, channels, first + i, row, local);
    kept[j] = in[j].convolve();
    squares += kept[j].x * kept[j].x + kept[j].y * kept[j].y + kept[j].z * kept[j].z + kept[j].w * kept[j].w;
  }
  float scale = 1;
  if (!value) scale = 1.f / sqrtf(warp_sum(squares) + 1e-6f) * (unit < a.key_heads ? a.q_scale : 1.f);
  float* out = a.conv + int64_t{row} * channels + first;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane * 4 + 128 * j;
    if (i < width)
      *reinterpret_cast<float4*>(out + i) =
          make_float4(kept[j].x * scale, kept[j].y * scale, kept[j].z * scale, kept[j].w * scale);
  }
}

}  // namespace mettle::cuda
