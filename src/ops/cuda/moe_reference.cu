#include "ops/cuda/moe_reference.h"

#include <algorithm>

#include "ops/cuda/device/reference_product.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

// One warp per row: the best top_k scores in descending order, lowest id on ties. The next best is the best of those
// that come after the last one in that order, so nothing needs to be marked. A score that is not a number counts as
// the lowest; its row still gets ids that exist and weights that are not numbers.
__global__ __launch_bounds__(32) void choose_kernel(MoeReference a) {
  const int row = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  const float* score = a.logits + int64_t{row} * a.router.rows;
  int32_t* ids = a.ids + int64_t{row} * a.top_k;
  float* weights = a.weights + int64_t{row} * a.top_k;
  const auto key = [&](int e) { return isnan(score[e]) ? -INFINITY : score[e]; };
  float last = INFINITY, most = 0, sum = 0;
  int last_id = -1;
  for (int k = 0; k < a.top_k; ++k) {
    float best = -INFINITY;
    int best_id = a.experts;
    for (int e = lane; e < a.experts; e += 32) {
      const float v = key(e);
      const bool after = v < last || (v == last && e > last_id);
      if (after && (best_id == a.experts || v > best)) best = v, best_id = e;
    }
    for (int d = 16; d > 0; d /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, d);
      const int other_id = __shfl_xor_sync(kAllLanes, best_id, d);
      if (other_id < a.experts && (best_id == a.experts || other > best || (other == best && other_id < best_id)))
        best = other, best_id = other_id;
    }
    last = best, last_id = best_id;
    if (k == 0) most = score[best_id];
    if (lane == 0) ids[k] = best_id;
    sum += expf(score[best_id] - most);
  }
  if (!a.renormalise) {
    sum = 0;
    for (int e = lane; e < a.experts; e += 32) sum += expf(score[e] - most);
    sum = warp_sum(sum);
  }
  __syncwarp();
  for (int k = lane; k < a.top_k; k += 32) weights[k] = expf(score[ids[k]] - most) / sum;
}

__device__ __forceinline__ p64::Matrix with(p64::Matrix shape, const uint8_t* data, const float* row_scale) {
  shape.data = data;
  shape.row_scale = row_scale;
  return shape;
}

// A block: one tile (eight rows of gate, the same eight of up) for one (row, choice) pair; the shared expert is the
// choice after the last.
__global__ __launch_bounds__(kProductWarps * 32) void gate_up_kernel(MoeReference a, int slots) {
  __shared__ float out[16];
  const int items = a.rows * slots, tile = static_cast<int>(blockIdx.x) / items;
  const int item = static_cast<int>(blockIdx.x) % items, row = item / slots, slot = item % slots;
  const bool shared = slot == a.top_k;
  p64::Matrix m = a.shared_gate_up;
  uint16_t* h = a.shared_h + int64_t{row} * a.shared_down.cols;
  if (!shared) {
    const int64_t pair = int64_t{row} * a.top_k + slot;
    if (a.ids[pair] < 0) return;  // padding
    const ExpertPointers& expert = a.experts_at[a.ids[pair]];
    m = with(a.gate_up, expert.gate_up, expert.gate_up_scale);
    h = a.h + pair * a.down.cols;
  }
  if (tile >= m.tiles) return;
  block_tile<1>(m, tile, a.x + int64_t{row} * a.hidden, a.hidden, 1, out);
  const int i = static_cast<int>(threadIdx.x);
  if (i < 8) h[tile * 8 + i] = to_bf16(silu(out[i]) * out[8 + i]);
}

// A block: one tile of 16 outputs of one row. Eight slots at a time, a warp each, then added in slot order.
__global__ __launch_bounds__(kProductWarps * 32) void down_kernel(MoeReference a, int slots) {
  __shared__ float products[kProductWarps][16];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = static_cast<int>(blockIdx.x) / a.rows, row = static_cast<int>(blockIdx.x) % a.rows;
  const int out = static_cast<int>(threadIdx.x);
  const auto padding = [&](int slot) { return slot < a.top_k && a.ids[int64_t{row} * a.top_k + slot] < 0; };
  float sum = 0;
  for (int first = 0; first < slots; first += kProductWarps) {
    const int slot = first + warp;
    if (slot < slots && !padding(slot)) {
      p64::Matrix m = a.shared_down;
      const uint16_t* h = a.shared_h + int64_t{row} * m.cols;
      if (slot < a.top_k) {
        const int64_t pair = int64_t{row} * a.top_k + slot;
        const ExpertPointers& expert = a.experts_at[a.ids[pair]];
        m = with(a.down, expert.down, expert.down_scale);
        h = a.h + pair * m.cols;
      }
      const TileSums<1> s = tile_sums<1>(m, tile, 0, 1, h, m.cols, 1, lane);
      if (lane % 4 == 0)
        for (int q = 0; q < 2; ++q)
          products[warp][lane / 4 + 8 * q] = s.of[q][0] * m.row_scale[tile * 16 + lane / 4 + 8 * q];
    }
    __syncthreads();
    if (out < 16)
      for (int w = 0; w < kProductWarps && first + w < slots; ++w) {
        const int k = first + w;
        if (padding(k)) continue;
        float weight = 1;
        if (k < a.top_k)
          weight = a.weights[int64_t{row} * a.top_k + k];
        else if (a.shared_gate)
          weight = sigmoid(a.logits[int64_t{row} * a.router.rows + a.experts]);
        sum = fmaf(weight, products[w][out], sum);
      }
    __syncthreads();
  }
  const int column = tile * 16 + out;
  if (out < 16 && column < a.hidden) a.partial[int64_t{row} * a.hidden + column] = sum;
}

}  // namespace

void moe_reference(const MoeReference& a, void* stream) {
  if (a.rows == 0) return;
  const auto go = [&](unsigned blocks, unsigned threads, auto kernel, auto... args) {
    launch(
        {.grid = dim3(blocks), .block = dim3(threads), .stream = static_cast<cudaStream_t>(stream), .dependent = false},
        kernel, args...);
  };
  const auto rows = static_cast<unsigned>(a.rows);
  if (!a.given || a.shared_gate) reference_product(a.router, a.x, a.logits, a.rows, stream);
  if (!a.given) go(rows, 32, choose_kernel, a);
  const int slots = a.top_k + (a.shared ? 1 : 0);
  const auto tiles = static_cast<unsigned>(std::max(a.gate_up.tiles, a.shared ? a.shared_gate_up.tiles : 0));
  go(rows * static_cast<unsigned>(slots) * tiles, kProductWarps * 32, gate_up_kernel, a, slots);
  go(rows * static_cast<unsigned>(a.down.tiles), kProductWarps * 32, down_kernel, a, slots);
}

}  // namespace mettle::cuda
