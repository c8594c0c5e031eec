#include "ops/cuda/attention_flash.h"

#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/product.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = 8, kMostHead = 256;

// blockIdx.x: row; blockIdx.y: eight heads of it, query heads first, then k, then v; a warp each. Rows that are padding
// only get a zero core.
__global__ __launch_bounds__(kWarps * 32) void attention_prepare_kernel(AttentionFlash a) {
  __shared__ float heads[kWarps][kMostHead];
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % 32), d = a.head_dim;
  const int unit = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  ptx::trigger();
  ptx::wait();
  if (unit >= a.heads + 2 * a.kv_heads) return;
  const bool is_q = unit < a.heads, is_v = unit >= a.heads + a.kv_heads;
  const int sequence = a.row_sequence[row];
  if (sequence < 0) {
    if (is_q)
      for (int i = lane; i < d; i += 32) a.core[(int64_t{row} * a.heads + unit) * d + i] = 0;
    return;
  }
  const int stride = a.gate ? 2 * d : d;
  const float* from =
      a.qkv + int64_t{row} * a.qkv_width() + (is_q ? unit * stride : a.heads * stride + (unit - a.heads) * d);
  const int position = a.row_position[row];
  const int kv_head = is_q ? 0 : (unit - a.heads) % a.kv_heads;
  uint16_t* to = is_q ? a.q + (int64_t{row} * a.heads + unit) * d
                      : (is_v ? a.v_cache : a.k_cache) +
                            a.cache_at(a.blocks + a.sequence[sequence].block_begin, position, kv_head);
  if (is_v) {
    for (int i = lane; i < d; i += 32) to[i] = to_bf16(from[i]);
    return;
  }
  float* head = heads[threadIdx.x / 32];
  const float scale = a.qk_norm ? inverse_root(from, d, 1.f / static_cast<float>(d), a.eps, lane) : 1.f;
  const float* weight = is_q ? a.q_norm : a.k_norm;
  for (int i = lane; i < d; i += 32) {
    const float factor = a.qk_norm ? (a.plus_one ? 1.f + weight[i] : weight[i]) : 1.f;
    head[i] = from[i] * scale * factor;
  }
  __syncwarp();
  const int half = a.rotary_dim / 2;
  for (int i = lane; i < d; i += 32) {
    float value = head[i];
    if (i < a.rotary_dim) {
      const int j = i < half ? i : i - half;
      float sine, cosine;
      sincosf(static_cast<float>(position) * a.inv_freq[j], &sine, &cosine);
      value = i < half ? value * cosine - head[i + half] * sine : value * cosine + head[j] * sine;
    }
    to[i] = to_bf16(value);
  }
}

}  // namespace

void attention_flash(const AttentionFlash& a, const AttentionWeights& weights, const uint16_t* x, float* partial,
                     void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  product(weights.qkv, x, a.rows, a.qkv, on);
  const int units = a.heads + 2 * a.kv_heads;
  launch({.grid = dim3(static_cast<unsigned>(a.rows), static_cast<unsigned>((units + kWarps - 1) / kWarps)),
          .block = dim3(kWarps * 32),
          .stream = on},
         attention_prepare_kernel, a);
  attention_split(a, stream);
  if (!a.few(a.most_q)) attention_tiles(a, stream);
  product(weights.out, a.core, a.rows, partial, on);
}

}  // namespace mettle::cuda
