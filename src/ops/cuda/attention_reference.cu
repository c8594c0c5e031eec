#include "ops/cuda/attention_reference.h"

#include "ops/cuda/device/cache_codes.cuh"
#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = 8;                      // of a block that attends
constexpr int kKeys = 4;                       // that a warp takes at a time
constexpr int kDims = kReferenceHeadDim / 32;  // of a head, per lane: lane, lane + 32, ...
constexpr int kAppendWarps = 4;

// Where the heads of a qkv row start.
struct Heads {
  int stride, keys_at, values_at;
  __device__ explicit Heads(const AttentionProblem& p)
      : stride(p.gate ? 2 * p.head_dim : p.head_dim),
        keys_at(p.heads * stride),
        values_at(keys_at + p.kv_heads * p.head_dim) {}
};

// First value of a cached position.
__device__ __forceinline__ int64_t cache_at(const AttentionProblem& p, const int32_t* table, int position,
                                            int kv_head) {
  const int64_t block = table[position / p.block_size];
  return ((block * p.block_size + position % p.block_size) * p.kv_heads + kv_head) * p.head_dim;
}

// One warp per (row, head): query heads, then k heads, then v heads. Queries stay in the row, k and v go to the cache.
__global__ __launch_bounds__(kAppendWarps * 32) void append_kernel(AttentionReference a) {
  const AttentionProblem& p = a.problem;
  const int all = p.heads + 2 * p.kv_heads, lane = static_cast<int>(threadIdx.x) % 32;
  const int item = static_cast<int>(blockIdx.x) * kAppendWarps + static_cast<int>(threadIdx.x) / 32;
  const int row = item / all, h = item % all;
  if (row >= a.batch.rows) return;
  const int sequence = a.batch.row_sequence[row];
  if (sequence < 0) return;
  const Heads heads(p);
  const int position = a.batch.row_position[row];
  const bool query = h < p.heads, value = h >= p.heads + p.kv_heads;
  const int kv_head = query ? 0 : (h - p.heads) % p.kv_heads;
  float* head = a.rows + int64_t{row} * a.qkv.rows +
                (query ? h * heads.stride : (value ? heads.values_at : heads.keys_at) + kv_head * p.head_dim);
  if (!value) {
    if (p.qk_norm) {
      const float* weight = query ? a.q_norm : a.k_norm;
      const float scale = inverse_root(head, p.head_dim, 1.f / static_cast<float>(p.head_dim), p.eps, lane);
      __syncwarp();
      for (int d = lane; d < p.head_dim; d += 32)
        head[d] = head[d] * scale * (p.norm_plus_one ? 1.f + weight[d] : weight[d]);
      __syncwarp();
    }
    const int half = p.rotary_dim / 2;
    for (int i = lane; i < half; i += 32) {
      float sine, cosine;
      sincosf(static_cast<float>(position) * a.inv_freq[i], &sine, &cosine);
      const float x = head[i], y = head[i + half];
      head[i] = x * cosine - y * sine;
      head[i + half] = y * cosine + x * sine;
    }
    __syncwarp();
  }
  if (query) return;
  const int32_t* table = a.batch.blocks + a.batch.sequence[sequence].block_begin;
  void* cache = value ? a.v_cache : a.k_cache;
  const int64_t at = cache_at(p, table, position, kv_head);
  for (int d = lane; d < p.head_dim; d += 32)
    if (p.cache == CacheFormat::kE4M3)
      static_cast<uint8_t*>(cache)[at + d] = to_code(head[d] / (value ? a.v_scale : a.k_scale));
    else
      static_cast<uint16_t*>(cache)[at + d] = to_bf16(head[d]);
}

// What a warp has seen of a (row, head): largest score, sum of exp(score - top), the same sum weighted with v.
struct Seen {
  float top = -INFINITY, sum = 0, out[kDims] = {};
};

__device__ __forceinline__ void see(Seen& seen, const float (&score)[kKeys], const float (&v)[kKeys][kDims]) {
  float best = seen.top;
#pragma unroll
  for (int j = 0; j < kKeys; ++j) best = fmaxf(best, score[j]);
  const float keep = expf(seen.top - best);
  seen.top = best;
  seen.sum *= keep;
#pragma unroll
  for (int i = 0; i < kDims; ++i) seen.out[i] *= keep;
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    const float e = expf(score[j] - best);
    seen.sum += e;
#pragma unroll
    for (int i = 0; i < kDims; ++i) seen.out[i] = fmaf(e, v[j][i], seen.out[i]);
  }
}

// One block per (row, query head): keys in groups of four by position, the groups dealt to the warps in turn, what they
// have seen joined in warp order. T: of the caches.
template <class T>
__global__ __launch_bounds__(kWarps * 32) void attend_kernel(AttentionReference a) {
  __shared__ float top[kWarps], sum[kWarps], out[kWarps][kReferenceHeadDim];
  const AttentionProblem& p = a.problem;
  const T *k_cache = static_cast<const T*>(a.k_cache), *v_cache = static_cast<const T*>(a.v_cache);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.x) / p.heads, h = static_cast<int>(blockIdx.x) % p.heads;
  uint16_t* core = a.core + (int64_t{row} * p.heads + h) * p.head_dim;
  const int sequence = a.batch.row_sequence[row];
  if (sequence < 0) {
    for (int d = static_cast<int>(threadIdx.x); d < p.head_dim; d += kWarps * 32) core[d] = 0;
    return;
  }
  const Heads heads(p);
  const float* head = a.rows + int64_t{row} * a.qkv.rows + h * heads.stride;
  const int32_t* table = a.batch.blocks + a.batch.sequence[sequence].block_begin;
  const int keys = a.batch.row_position[row] + 1, kv_head = h / (p.heads / p.kv_heads);
  const float scale = 1.f / sqrtf(static_cast<float>(p.head_dim)) * a.k_scale;
  float q[kDims];
#pragma unroll
  for (int i = 0; i < kDims; ++i) q[i] = lane + 32 * i < p.head_dim ? head[lane + 32 * i] : 0.f;
  Seen seen;
  for (int begin = warp * kKeys; begin < keys; begin += kWarps * kKeys) {
    float score[kKeys], v[kKeys][kDims];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const bool there = begin + j < keys;
      const int64_t at = there ? cache_at(p, table, begin + j, kv_head) : 0;
      float dot = 0;
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = lane + 32 * i;
        const bool read = there && d < p.head_dim;
        dot = fmaf(q[i], read ? cached_value(k_cache, at + d) : 0.f, dot);
        v[j][i] = read ? cached_value(v_cache, at + d) : 0.f;
      }
      score[j] = there ? dot : -INFINITY;
    }
#pragma unroll
    for (int j = 0; j < kKeys; ++j) score[j] = begin + j < keys ? warp_sum(score[j]) * scale : -INFINITY;
    see(seen, score, v);
  }
  if (lane == 0) top[warp] = seen.top, sum[warp] = seen.sum;
#pragma unroll
  for (int i = 0; i < kDims; ++i) out[warp][lane + 32 * i] = seen.out[i];
  __syncthreads();
  float best = top[0];
  for (int w = 1; w < kWarps; ++w) best = fmaxf(best, top[w]);
  for (int d = static_cast<int>(threadIdx.x); d < p.head_dim; d += kWarps * 32) {
    float total = 0, value = 0;
    for (int w = 0; w < kWarps && w * kKeys < keys; ++w) {
      const float share = expf(top[w] - best);
      total = fmaf(share, sum[w], total);
      value = fmaf(share, out[w][d], value);
    }
    value = value / total * a.v_scale;
    core[d] = to_bf16(p.gate ? value * sigmoid(head[p.head_dim + d]) : value);
  }
}

}  // namespace

void attention_reference(const AttentionReference& a, void* stream) {
  const int rows = a.batch.rows;
  if (rows == 0) return;
  const AttentionProblem& p = a.problem;
  const auto go = [&](int blocks, int warps, void (*kernel)(AttentionReference)) {
    launch({.grid = dim3(static_cast<unsigned>(blocks)),
            .block = dim3(static_cast<unsigned>(warps) * 32),
            .stream = static_cast<cudaStream_t>(stream),
            .dependent = false},
           kernel, a);
  };
  reference_product(a.qkv, a.x, a.rows, rows, stream);
  go((rows * (p.heads + 2 * p.kv_heads) + kAppendWarps - 1) / kAppendWarps, kAppendWarps, append_kernel);
  go(rows * p.heads, kWarps, p.cache == CacheFormat::kE4M3 ? attend_kernel<uint8_t> : attend_kernel<uint16_t>);
  reference_product(a.out, a.core, a.partial, rows, stream);
}

}  // namespace mettle::cuda
