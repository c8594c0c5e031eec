#include "ops/cuda/attention_flash.h"

#include "ops/cuda/device/attention_head.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/product.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = 8;

// blockIdx.x: row; blockIdx.y: eight heads of it, query heads first, then k, then v; a warp each. Rows that are padding
// only get a zero core. What does not come from kernels of this step (the batch, weights) is read before the wait.
__global__ __launch_bounds__(kWarps * 32) void attention_prepare_kernel(AttentionFlash a) {
  __shared__ float heads[kWarps][kMostHead];
  __shared__ AttentionAngles angles;
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % 32), d = a.head_dim;
  const int unit = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  ptx::trigger();
  const bool is_q = unit < a.heads, is_v = unit >= a.heads + a.kv_heads;
  const int sequence = a.row_sequence[row], position = sequence < 0 ? 0 : a.row_position[row];
  const int64_t at = is_q || sequence < 0 ? 0
                                          : a.cache_at(a.blocks + a.sequence[sequence].block_begin, position,
                                                       (unit - a.heads) % a.kv_heads);
  AttentionHead head;
  head.load_factors(a, is_q, lane);
  angles.fill(a, position, kWarps * 32);
  __syncthreads();
  ptx::wait();
  if (unit >= a.heads + 2 * a.kv_heads) return;
  uint16_t* q = a.q + (int64_t{row} * a.heads + unit) * d;
  if (sequence < 0) {
    if (is_q)
      for (int i = lane; i < d; i += 32) a.core[(int64_t{row} * a.heads + unit) * d + i] = 0;
    return;
  }
  head.load(a.qkv + int64_t{row} * a.qkv_width() + a.head_at(unit), d, lane);
  const CachePlace place(a, is_v, at);
  if (is_v) return head.put_as_is(d, lane, place);
  head.put_turned(a, angles, heads[threadIdx.x / 32], lane, [&](int i, float x) {
    if (is_q)
      q[i] = to_bf16(x);
    else
      place(i, x);
  });
}

}  // namespace

void attention_flash(const AttentionFlash& a, const AttentionWeights& weights, const uint16_t* x, float* partial,
                     void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  product(weights.qkv, x, a.rows, a.qkv, on);
  if (!a.fused) {
    const int units = a.heads + 2 * a.kv_heads;
    launch({.grid = dim3(static_cast<unsigned>(a.rows), static_cast<unsigned>((units + kWarps - 1) / kWarps)),
            .block = dim3(kWarps * 32),
            .stream = on},
           attention_prepare_kernel, a);
  }
  attention_split(a, stream);
  if (!a.few(a.most_q)) attention_tiles(a, stream);
  product(weights.out, a.core, a.rows, partial, on);
}

}  // namespace mettle::cuda
