#include "ops/cuda/attention_flash.h"

#include "ops/cuda/device/cache_codes.cuh"
#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/product.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = 8, kMostHead = 256;

// blockIdx.x: row; blockIdx.y: eight heads of it, query heads first, then k, then v; a warp each. Rows that are padding
// only get a zero core. What does not come from kernels of this step (the batch, weights) is read before the wait.
__global__ __launch_bounds__(kWarps * 32) void attention_prepare_kernel(AttentionFlash a) {
  constexpr int kMine = kMostHead / 32;  // values of a head that a lane holds: lane, lane + 32, ...
  __shared__ float heads[kWarps][kMostHead], cosines[kMostHead / 2], sines[kMostHead / 2];
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % 32), d = a.head_dim;
  const int unit = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32), half = a.rotary_dim / 2;
  ptx::trigger();
  const bool is_q = unit < a.heads, is_v = unit >= a.heads + a.kv_heads;
  const int sequence = a.row_sequence[row], position = sequence < 0 ? 0 : a.row_position[row];
  const int stride = a.gate ? 2 * d : d;
  const float* from =
      a.qkv + int64_t{row} * a.qkv_width() + (is_q ? unit * stride : a.heads * stride + (unit - a.heads) * d);
  uint16_t* to = a.q + (int64_t{row} * a.heads + unit) * d;
  uint8_t* codes = nullptr;
  const float code_scale = is_v ? a.v_scale : a.k_scale;
  if (!is_q && sequence >= 0) {
    void* cache = is_v ? a.v_cache : a.k_cache;
    const int64_t at = a.cache_at(a.blocks + a.sequence[sequence].block_begin, position, (unit - a.heads) % a.kv_heads);
    to = static_cast<uint16_t*>(cache) + at;
    if (a.codes) codes = static_cast<uint8_t*>(cache) + at;
  }
  const auto put = [&](int i, float x) {
    if (codes != nullptr)
      codes[i] = to_code(x / code_scale);
    else
      to[i] = to_bf16(x);
  };
  float factor[kMine];
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    const int i = lane + 32 * j;
    factor[j] = a.plus_one ? 1.f : 0.f;
    if (a.qk_norm && i < d) factor[j] += (is_q ? a.q_norm : a.k_norm)[i];
  }
  for (int i = static_cast<int>(threadIdx.x); i < half; i += kWarps * 32)
    sincosf(static_cast<float>(position) * a.inv_freq[i], &sines[i], &cosines[i]);
  __syncthreads();
  ptx::wait();
  if (unit >= a.heads + 2 * a.kv_heads) return;
  if (sequence < 0) {
    if (is_q)
      for (int i = lane; i < d; i += 32) a.core[(int64_t{row} * a.heads + unit) * d + i] = 0;
    return;
  }
  float value[kMine], squares = 0;
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    value[j] = lane + 32 * j < d ? from[lane + 32 * j] : 0.f;
    squares = fmaf(value[j], value[j], squares);
  }
  if (is_v) {
#pragma unroll
    for (int j = 0; j < kMine; ++j)
      if (lane + 32 * j < d) put(lane + 32 * j, value[j]);
    return;
  }
  float* head = heads[threadIdx.x / 32];
  const float scale = a.qk_norm ? 1.f / sqrtf(warp_sum(squares) / static_cast<float>(d) + a.eps) : 1.f;
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    if (a.qk_norm) value[j] = value[j] * scale * factor[j];
    if (lane + 32 * j < d) head[lane + 32 * j] = value[j];
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    const int i = lane + 32 * j;
    if (i >= d) continue;
    float turned = value[j];
    if (i < half)
      turned = turned * cosines[i] - head[i + half] * sines[i];
    else if (i < a.rotary_dim)
      turned = turned * cosines[i - half] + head[i - half] * sines[i - half];
    put(i, turned);
  }
}

}  // namespace

void attention_flash(const AttentionFlash& a, const AttentionWeights& weights, const uint16_t* x, float* partial,
                     void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const bool bulk = a.bulk.ordered != nullptr && bulk_takes(a.rows);
  const auto multiply = [&](const PackedMatrix& w, const uint16_t* from, float* y) {
    if (bulk) return bulk_product(view_of(w), from, a.rows, a.bulk, y, on);
    product(w, from, a.rows, y, on);
  };
  multiply(weights.qkv, x, a.qkv);
  const int units = a.heads + 2 * a.kv_heads;
  launch({.grid = dim3(static_cast<unsigned>(a.rows), static_cast<unsigned>((units + kWarps - 1) / kWarps)),
          .block = dim3(kWarps * 32),
          .stream = on},
         attention_prepare_kernel, a);
  attention_split(a, stream);
  if (!a.few(a.most_q)) attention_tiles(a, stream);
  multiply(weights.out, a.core, partial);
}

}  // namespace mettle::cuda
