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

// silu of the convolution of four channels. `local`: index of the row in its sequence.
__device__ __forceinline__ float4 gdn_convolve(const GdnRecurrent& a, int channels, int channel, int row, int local,
                                               const float* history) {
  float past[4][4] = {};  // [input, oldest first][channel]
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (local - 3 + j < 0) continue;
    const float4 v = *reinterpret_cast<const float4*>(a.qkv + int64_t{row - 3 + j} * channels + channel);
    past[j][0] = v.x, past[j][1] = v.y, past[j][2] = v.z, past[j][3] = v.w;
  }
  if (local < 3 && history != nullptr) {
    const float* h = history + int64_t{channel} * 3;  // [channel][3], oldest first
#pragma unroll
    for (int j = 0; j < 3; ++j)
      if (local + j < 3)
#pragma unroll
        for (int c = 0; c < 4; ++c) past[j][c] = h[c * 3 + local + j];
  }
  float out[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float4 tap = *reinterpret_cast<const float4*>(a.taps + int64_t{channel + c} * 4);
    float sum = tap.x * past[0][c];
    sum = fmaf(tap.y, past[1][c], sum);
    sum = fmaf(tap.z, past[2][c], sum);
    out[c] = silu(fmaf(tap.w, past[3][c], sum));
  }
  return make_float4(out[0], out[1], out[2], out[3]);
}

// blockIdx.x: row; blockIdx.y: eight units of it. Rows that are padding only get a zero core.
static __global__ __launch_bounds__(kGdnConvWarps * 32) void gdn_conv_kernel(GdnRecurrent a, int units) {
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % 32);
  const int unit = static_cast<int>(blockIdx.y * kGdnConvWarps + threadIdx.x / 32);
  ptx::trigger();
  ptx::wait();
  if (unit >= units) return;
  const int key_units = 2 * a.key_heads, channels = key_units * a.dk + a.value_heads * a.dv;
  const int sequence = a.row_sequence[row];
  if (unit == units - 1) {
    const float* ba = a.ba + int64_t{row} * 2 * a.value_heads;
    for (int h = lane; h < a.value_heads && sequence >= 0; h += 32) {
      const float rate = expf(a.a_log[h]) * softplus(ba[a.value_heads + h] + a.dt_bias[h]);
      reinterpret_cast<float2*>(a.gates)[int64_t{row} * a.value_heads + h] = make_float2(sigmoid(ba[h]), expf(-rate));
    }
    return;
  }
  const bool value = unit >= key_units;
  const int width = value ? a.dv : a.dk;
  const int first = value ? key_units * a.dk + (unit - key_units) * a.dv : unit * a.dk;
  if (sequence < 0) {
    if (value)
      for (int i = lane; i < width; i += 32) a.core[(int64_t{row} * a.value_heads + unit - key_units) * a.dv + i] = 0;
    return;
  }
  const DeviceSequence s = a.sequence[sequence];
  const float* history = s.state_in < 0 ? nullptr : a.conv_state + int64_t{s.state_in} * channels * 3;
  float* out = a.conv + int64_t{row} * channels + first;
  float4 kept[2];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane * 4 + 128 * j;
    kept[j] = make_float4(0, 0, 0, 0);
    if (i >= width) continue;
    kept[j] = gdn_convolve(a, channels, first + i, row, row - s.first_row, history);
    squares += kept[j].x * kept[j].x + kept[j].y * kept[j].y + kept[j].z * kept[j].z + kept[j].w * kept[j].w;
  }
  float scale = 1;
  if (!value) scale = 1.f / sqrtf(warp_sum(squares) + 1e-6f) * (unit < a.key_heads ? a.q_scale : 1.f);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane * 4 + 128 * j;
    if (i < width)
      *reinterpret_cast<float4*>(out + i) =
          make_float4(kept[j].x * scale, kept[j].y * scale, kept[j].z * scale, kept[j].w * scale);
  }
}

}  // namespace mettle::cuda
