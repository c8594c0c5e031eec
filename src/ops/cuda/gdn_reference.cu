#include "ops/cuda/gdn_reference.h"

#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kConvThreads = 128;
constexpr int kColumns = 32;  // of the state, per block
constexpr int kLines = 8;
constexpr int kWarps = 4;  // of a block whose warps take a (row, head) each

// One thread per (sequence, channel), rows in order. The history it reads and the one it writes may be the same slot.
__global__ __launch_bounds__(kConvThreads) void convolve_kernel(GdnReference a) {
  const GdnProblem& p = a.problem;
  const DeviceSequence s = a.batch.sequence[blockIdx.y];
  const int channels = a.qkv.rows, past = p.conv - 1;
  const int channel = static_cast<int>(blockIdx.x) * kConvThreads + static_cast<int>(threadIdx.x);
  if (s.q_len == 0 || channel >= channels) return;
  const auto slot = [&](int32_t index) { return a.conv_state + (int64_t{index} * channels + channel) * past; };
  const float* now = a.qkv_rows + int64_t{s.first_row} * channels + channel;
  // The row `at` of this sequence; rows before the first are in the history.
  const auto input = [&](int at) {
    if (at >= 0) return now[int64_t{at} * channels];
    return s.state_in < 0 ? 0.f : slot(s.state_in)[past + at];
  };
  const float* tap = a.conv + int64_t{channel} * p.conv;
  float* out = a.conv_rows + int64_t{s.first_row} * channels + channel;
  for (int row = 0; row < s.q_len; ++row) {
    float sum = 0;
    for (int j = 0; j < p.conv; ++j) sum = fmaf(tap[j], input(row - past + j), sum);
    out[int64_t{row} * channels] = silu(sum);
  }
  // Place j takes what was q_len places later: in place, that is read before it is written.
  float* history = slot(s.state_out);
  for (int j = 0; j < past; ++j) history[j] = input(s.q_len - past + j);
}

// One warp per (row, q or k head): L2 norm, q times dk^-0.5.
__global__ __launch_bounds__(kWarps * 32) void normalise_kernel(GdnReference a) {
  const GdnProblem& p = a.problem;
  const int item = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int row = item / (2 * p.key_heads), h = item % (2 * p.key_heads), lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= a.batch.rows || a.batch.row_sequence[row] < 0) return;
  float* head = a.conv_rows + int64_t{row} * a.qkv.rows + h * p.dk;
  const float inverse = inverse_root(head, p.dk, 1.f, 1e-6f, lane);
  const float scale = h < p.key_heads ? 1.f / sqrtf(static_cast<float>(p.dk)) : 1.f;
  __syncwarp();
  for (int i = lane; i < p.dk; i += 32) head[i] = head[i] * inverse * scale;
}

// One thread per (sequence, value head, column of the state), rows in order: decay, read, write, read out.
__global__ __launch_bounds__(kColumns) void delta_kernel(GdnReference a, int column_blocks) {
  const GdnProblem& p = a.problem;
  const int item = static_cast<int>(blockIdx.x);
  const int column = item % column_blocks * kColumns + static_cast<int>(threadIdx.x);
  const int head = item / column_blocks % p.value_heads;
  const DeviceSequence s = a.batch.sequence[item / column_blocks / p.value_heads];
  if (s.q_len == 0 || column >= p.dv) return;
  const int key = head / (p.value_heads / p.key_heads) * p.dk, keys = p.key_heads * p.dk;
  const auto slot = [&](int32_t index) {
    return a.state + (int64_t{index} * p.value_heads + head) * p.dk * p.dv + column;
  };
  const float* from = s.state_in < 0 ? nullptr : slot(s.state_in);
  float* to = slot(s.state_out);
  const float rate = expf(a.a_log[head]), bias = a.dt_bias[head];
  for (int row = s.first_row; row < s.first_row + s.q_len; ++row) {
    const float* conv = a.conv_rows + int64_t{row} * a.qkv.rows;
    const float *q = conv + key, *k = q + keys;
    const float v = conv[2 * keys + head * p.dv + column];
    const float* ba = a.ba_rows + int64_t{row} * 2 * p.value_heads;
    const float beta = sigmoid(ba[head]);
    const float decay = expf(-rate * softplus(ba[p.value_heads + head] + bias));
    // Eight lines of the column at a time, all loaded before any is written.
    const auto load = [&](int first, float(&before)[kLines]) {
#pragma unroll
      for (int i = 0; i < kLines; ++i)
        before[i] = from != nullptr && first + i < p.dk ? from[int64_t{first + i} * p.dv] * decay : 0.f;
    };
    float before[kLines], read = 0, out = 0;
    for (int first = 0; from != nullptr && first < p.dk; first += kLines) {
      load(first, before);
#pragma unroll
      for (int i = 0; i < kLines; ++i)
        if (first + i < p.dk) read = fmaf(before[i], k[first + i], read);
    }
    const float u = beta * (v - read);
    for (int first = 0; first < p.dk; first += kLines) {
      load(first, before);
#pragma unroll
      for (int i = 0; i < kLines; ++i) {
        if (first + i >= p.dk) break;
        const float after = fmaf(k[first + i], u, before[i]);
        to[int64_t{first + i} * p.dv] = after;
        out = fmaf(after, q[first + i], out);
      }
    }
    a.read_rows[(int64_t{row} * p.value_heads + head) * p.dv + column] = out;
    from = to;
  }
}

// One warp per (row, value head): RMS norm of o, its weight, silu(z). Padding gets zeros.
__global__ __launch_bounds__(kWarps * 32) void gated_norm_kernel(GdnReference a) {
  const GdnProblem& p = a.problem;
  const int item = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int row = item / p.value_heads, lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= a.batch.rows) return;
  const int64_t at = int64_t{item} * p.dv;
  const bool padding = a.batch.row_sequence[row] < 0;
  const float *o = a.read_rows + at, *z = a.z_rows + at;
  const float scale = padding ? 0.f : inverse_root(o, p.dv, 1.f / static_cast<float>(p.dv), p.eps, lane);
  for (int j = lane; j < p.dv; j += 32)
    a.core[at + j] = padding ? uint16_t{0} : to_bf16(o[j] * scale * a.norm[j] * silu(z[j]));
}

}  // namespace

void gdn_reference(const GdnReference& a, void* stream) {
  const int rows = a.batch.rows;
  if (rows == 0) return;
  const GdnProblem& p = a.problem;
  const auto go = [&](dim3 blocks, int threads, auto kernel, auto... args) {
    launch({.grid = blocks,
            .block = dim3(static_cast<unsigned>(threads)),
            .stream = static_cast<cudaStream_t>(stream),
            .dependent = false},
           kernel, a, args...);
  };
  const auto ceil = [](int64_t n, int64_t by) { return static_cast<unsigned>((n + by - 1) / by); };
  const auto sequences = static_cast<unsigned>(a.batch.sequences);
  reference_product(a.qkv, a.x, a.qkv_rows, rows, stream);
  reference_product(a.z, a.x, a.z_rows, rows, stream);
  reference_product(a.ba, a.x, a.ba_rows, rows, stream);
  go(dim3(ceil(p.channels(), kConvThreads), sequences), kConvThreads, convolve_kernel);
  go(ceil(int64_t{rows} * 2 * p.key_heads, kWarps), kWarps * 32, normalise_kernel);
  const unsigned column_blocks = ceil(p.dv, kColumns);
  go(sequences * static_cast<unsigned>(p.value_heads) * column_blocks, kColumns, delta_kernel,
     static_cast<int>(column_blocks));
  go(ceil(int64_t{rows} * p.value_heads, kWarps), kWarps * 32, gated_norm_kernel);
  reference_product(a.out, a.core, a.partial, rows, stream);
}

}  // namespace mettle::cuda
