// What comes before the chunks, like gdn_conv_kernel and bit for bit the same, for steps of many rows: a warp takes 128
// channels of sixteen rows, so the taps are loaded once and an input row once and a fifth.
#include "ops/cuda/device/gdn_conv.cuh"
#include "ops/cuda/gdn_chunked.h"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kRows = 16, kWarps = 8, kSlice = 128, kAhead = 4;

int units_of(const GdnRecurrent& a) { return 2 * a.key_heads + (a.value_heads * a.dv + kSlice - 1) / kSlice + 1; }

// blockIdx.x: sixteen rows; blockIdx.y: eight units: a head of q or of k, 128 channels of v, and the gates at last.
__global__ __launch_bounds__(kWarps * 32) void gdn_chunk_conv_kernel(GdnRecurrent a, int units) {
  const int unit = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int begin = static_cast<int>(blockIdx.x) * kRows, end = min(begin + kRows, a.rows);
  ptx::trigger();
  ptx::wait();
  if (unit >= units) return;
  if (unit == units - 1) {
    for (int row = begin; row < end; ++row)
      if (a.row_sequence[row] >= 0) gdn_gates(a, row, lane);
    return;
  }
  const int key_units = 2 * a.key_heads, keys = key_units * a.dk, values = a.value_heads * a.dv;
  const int channels = keys + values;
  const bool of_v = unit >= key_units;
  const int first = of_v ? keys + (unit - key_units) * kSlice : unit * a.dk, channel = first + lane * 4;
  const bool has = lane * 4 < (of_v ? min(kSlice, channels - first) : a.dk);
  GdnChannels in;
  if (has)
#pragma unroll
    for (int c = 0; c < 4; ++c) in.tap[c] = *reinterpret_cast<const float4*>(a.taps + int64_t{channel + c} * 4);
  const auto input = [&](int row) {
    return has && row < end ? *reinterpret_cast<const float4*>(a.qkv + int64_t{row} * channels + channel)
                            : make_float4(0, 0, 0, 0);
  };
  const auto place = [&](int j, const float4& v) {
    in.past[j][0] = v.x, in.past[j][1] = v.y, in.past[j][2] = v.z, in.past[j][3] = v.w;
  };
  int at = -1;  // the sequence of the row before, whose inputs are at hand
  for (int some = begin; some < end; some += kAhead) {
    float4 now[kAhead];
    int of[kAhead];  // the rows' sequences
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      now[i] = input(some + i);
      of[i] = some + i < end ? a.row_sequence[some + i] : -1;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int row = some + i, sequence = of[i];
      if (sequence < 0) {
        if (of_v && has && row < end)
          *reinterpret_cast<ushort4*>(a.core + int64_t{row} * values + channel - keys) = ushort4{0, 0, 0, 0};
        at = -1;
        continue;
      }
      if (sequence != at) {
        const DeviceSequence s = a.sequence[sequence];
        const int local = row - s.first_row;
        const float* history = s.state_in < 0 ? nullptr : a.conv_state + int64_t{s.state_in} * channels * 3;
#pragma unroll
        for (int j = 0; j < 3; ++j) {
          if (local - 3 + j >= 0) {
            place(j, input(row - 3 + j));
            continue;
          }
#pragma unroll
          for (int c = 0; c < 4; ++c)
            in.past[j][c] = has && history != nullptr ? history[int64_t{channel + c} * 3 + local + j] : 0.f;
        }
        at = sequence;
      }
      place(3, now[i]);
      float4 out = has ? in.convolve() : make_float4(0, 0, 0, 0);
      if (!of_v) {
        const float scale = 1.f /
                            sqrtf(warp_sum(out.x * out.x + out.y * out.y + out.z * out.z + out.w * out.w) + 1e-6f) *
                            (unit < a.key_heads ? a.q_scale : 1.f);
        out = make_float4(out.x * scale, out.y * scale, out.z * scale, out.w * scale);
      }
      if (has) *reinterpret_cast<float4*>(a.conv + int64_t{row} * channels + channel) = out;
#pragma unroll
      for (int j = 0; j < 3; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) in.past[j][c] = in.past[j + 1][c];
    }
  }
}

}  // namespace

void gdn_chunk_conv(const GdnRecurrent& a, void* stream) {
  const int units = units_of(a);
  launch({.grid = dim3(static_cast<unsigned>((a.rows + kRows - 1) / kRows),
                       static_cast<unsigned>((units + kWarps - 1) / kWarps)),
          .block = dim3(kWarps * 32),
          .stream = static_cast<cudaStream_t>(stream)},
         gdn_chunk_conv_kernel, a, units);
}

}  // namespace mettle::cuda
