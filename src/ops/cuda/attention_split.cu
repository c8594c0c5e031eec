// Sequences of few packed rows: keys split over blocks, each split over four warps, all merged in a fixed order. Keys
// and values go from the cache straight into the fragments of the tensor cores: with the dimensions of a head permuted
// (the same way for q and k, and in the columns of the output) a lane's share of a row is 16 contiguous bytes, or eight
// codes, widened in registers.
#include "ops/cuda/attention_flash.h"
#include "ops/cuda/device/cache_codes.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/device/softmax.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kChunk = 16;  // keys that a warp takes at a time

// What one warp carries along its keys: largest score and this lane's sum for rows g and g + 8, and the outputs
// o[64 dims][pair of dims][8 rows]: {dim 64 e + 8 g + 2 j, row 2 t}, {same, 2 t + 1}, {dim + 1, 2 t}, {.., 2 t + 1}.
template <int HD, int NB>
struct Running {
  float top[NB], sum[NB];
  float o[HD / 64][4][NB][4];
};

// Whether a lane's share may hold NaN codes; asked once for all of it, so that widening needs no branch a word.
template <bool kCodes, int A, int B>
__device__ __forceinline__ bool may_be_nan(const Eight<kCodes> (&share)[A][B]) {
  uint32_t nan = 0;
#pragma unroll
  for (int i = 0; i < A * B; ++i) nan |= share[i / B][i % B].nan();
  return nan != 0;
}

// Sixteen keys: scores, softmax step, weighted values.
template <int HD, int NB, bool kCodes>
__device__ __forceinline__ void take_keys(Running<HD, NB>& run, const AttentionFlash& a, const uint4* q,
                                          const int32_t* table, int kv_head, int key0, int keys, const int* visible,
                                          int lane) {
  constexpr bool kTogether = HD * NB <= 256;  // room for keys and values at once
  const int g = lane / 4, t = lane % 4;
  Eight<kCodes> k[2][HD / 32], v[4][HD / 64];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int key = key0 + 8 * n + g;
    const int64_t at = key < keys ? a.cache_at(table, key, kv_head) + 8 * t : 0;
#pragma unroll
    for (int c = 0; c < HD / 32; ++c) k[n][c].load(a.k_cache, at + 32 * c, key < keys);
  }
  const auto load_values = [&] {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int key = key0 + 2 * t + (n & 1) + 8 * (n >> 1);
      const int64_t at = key < keys ? a.cache_at(table, key, kv_head) + 8 * g : 0;
#pragma unroll
      for (int e = 0; e < HD / 64; ++e) v[n][e].load(a.v_cache, at + 64 * e, key < keys);
    }
  };
  if constexpr (kTogether) load_values();
  const bool k_nan = may_be_nan(k);

  float s[2][2][4] = {};  // [8 keys][half of the dims]: two chains each
#pragma unroll
  for (int c = 0; c < HD / 32; ++c) {
    const uint4 low = q[(c * 8 * NB + g) * 4 + t];
    const uint4 keys_of[2] = {k[0][c].pairs(k_nan), k[1][c].pairs(k_nan)};
    const uint4 high = NB == 2 ? q[(c * 8 * NB + g + 8) * 4 + t] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t rows[4] = {ptx::word(low, 2 * h), ptx::word(high, 2 * h), ptx::word(low, 2 * h + 1),
                                ptx::word(high, 2 * h + 1)};
#pragma unroll
      for (int n = 0; n < 2; ++n)
        ptx::mma_16816(s[n][h], rows, ptx::word(keys_of[n], 2 * h), ptx::word(keys_of[n], 2 * h + 1));
    }
  }
  if constexpr (!kTogether) load_values();
  const bool v_nan = may_be_nan(v);

  uint32_t p[NB][2];
  float keep[NB];
#pragma unroll
  for (int b = 0; b < NB; ++b) {  // rows g + 8 b
    float score[4];
    float best = run.top[b];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = i / 2, at = i % 2 + 2 * b;
      score[i] = key0 + 8 * n + 2 * t + i % 2 < visible[b] ? s[n][0][at] + s[n][1][at] : -INFINITY;
      best = fmaxf(best, score[i]);
    }
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
    best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
    keep[b] = power(run.top[b], best, a.exponent);
    run.top[b] = best;
    run.sum[b] *= keep[b];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[i] = power(score[i], best, a.exponent);
      run.sum[b] += score[i];
    }
    p[b][0] = pack_bf16(score[0], score[1]);
    p[b][1] = pack_bf16(score[2], score[3]);
  }
#pragma unroll
  for (int b = 0; b < NB; ++b) {
    const float even = __shfl_sync(kAllLanes, keep[b], 8 * t), odd = __shfl_sync(kAllLanes, keep[b], 8 * t + 4);
#pragma unroll
    for (int e = 0; e < HD / 64; ++e)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float* o = run.o[e][j][b];
        o[0] *= even, o[2] *= even, o[1] *= odd, o[3] *= odd;
      }
  }
#pragma unroll
  for (int e = 0; e < HD / 64; ++e) {
    const uint4 values[4] = {v[0][e].pairs(v_nan), v[1][e].pairs(v_nan), v[2][e].pairs(v_nan), v[3][e].pairs(v_nan)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t x0 = ptx::word(values[0], j), x1 = ptx::word(values[1], j);
      const uint32_t x2 = ptx::word(values[2], j), x3 = ptx::word(values[3], j);
      const uint32_t dims[4] = {__byte_perm(x0, x1, 0x5410), __byte_perm(x0, x1, 0x7632), __byte_perm(x2, x3, 0x5410),
                                __byte_perm(x2, x3, 0x7632)};
#pragma unroll
      for (int b = 0; b < NB; ++b) ptx::mma_16816(run.o[e][j][b], dims, p[b][0], p[b][1]);
    }
  }
}

// The first keys of a split and their values on their way to L2.
template <int HD, bool kCodes>
__device__ __forceinline__ void prefetch_keys(const AttentionFlash& a, const int32_t* table, int kv_head, int begin,
                                              int end) {
  constexpr int kBytes = kCodes ? 1 : 2, kLines = HD * kBytes > 128 ? HD * kBytes / 128 : 1;
  for (int i = static_cast<int>(threadIdx.x); i < kSplitKeys * kLines; i += kWarps * 32) {
    const int key = begin + i / kLines;
    if (key >= end) break;
    const int64_t at = a.cache_at(table, key, kv_head) * kBytes + i % kLines * 128;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(a.k_cache) + at));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(a.v_cache) + at));
  }
}

// blockIdx: sequence, kv head, split. NB: blocks of eight packed rows.
template <int HD, int NB, bool kCodes>
__global__ __launch_bounds__(kWarps * 32, 2) void attention_split_kernel(AttentionFlash a, int first_sequence,
                                                                         int splits, int most) {
  constexpr int kRows = 8 * NB;
  extern __shared__ uint4 shared[];  // first q's fragments, then the warps' outputs
  __shared__ float stats[kWarps][kRows][2];
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const int kv_head = static_cast<int>(blockIdx.y), split = static_cast<int>(blockIdx.z);
  ptx::trigger();
  // The batch was there before the step's first kernel; the keys of earlier steps are asked for ahead of its kernels.
  const DeviceSequence s = a.sequence[first_sequence + static_cast<int>(blockIdx.x)];
  const int keys = s.ctx_len + s.q_len, step = split_keys(keys, most), begin = split * step;
  const int end = min(keys, begin + step), group = a.group(), packed = s.q_len * group;
  const int32_t* table = a.blocks + s.block_begin;
  const bool idle = s.q_len == 0 || !a.few(s.q_len) || begin >= keys;
  if (!idle) prefetch_keys<HD, kCodes>(a, table, kv_head, begin, end);
  ptx::wait();
  if (idle) return;

  for (int i = tid; i < HD / 32 * kRows * 4; i += kWarps * 32) {
    const int row = i / 4 % kRows, dim = i / (4 * kRows) * 32 + i % 4 * 8;
    shared[i] = ptx::load_activation(
        a.q + (int64_t{s.first_row + row / group} * a.heads + kv_head * group + row % group) * HD + dim, row < packed);
  }
  __syncthreads();

  Running<HD, NB> run = {};
  int visible[NB];
#pragma unroll
  for (int b = 0; b < NB; ++b) {
    run.top[b] = -INFINITY;
    visible[b] = g + 8 * b < packed ? s.ctx_len + (g + 8 * b) / group + 1 : 0;
  }
  for (int key0 = begin + warp * kChunk; key0 < end; key0 += kWarps * kChunk)
    take_keys<HD, NB, kCodes>(run, a, shared, table, kv_head, key0, keys, visible, lane);

    // Merge of the warps.
#pragma unroll
  for (int b = 0; b < NB; ++b) {
    run.sum[b] += __shfl_xor_sync(kAllLanes, run.sum[b], 1);
    run.sum[b] += __shfl_xor_sync(kAllLanes, run.sum[b], 2);
    if (t == 0) stats[warp][g + 8 * b][0] = run.top[b], stats[warp][g + 8 * b][1] = run.sum[b];
  }
  __syncthreads();
  float* outputs = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int b = 0; b < NB; ++b)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * b + 2 * t + i;
      float best = stats[0][row][0];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) best = fmaxf(best, stats[w][row][0]);
      const float keep = power(stats[warp][row][0], best, a.exponent);
#pragma unroll
      for (int e = 0; e < HD / 64; ++e)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          *reinterpret_cast<float2*>(outputs + (warp * kRows + row) * HD + 64 * e + 8 * g + 2 * j) =
              make_float2(run.o[e][j][b][i] * keep, run.o[e][j][b][i + 2] * keep);
    }
  __syncthreads();
  const int64_t slot = ((int64_t{blockIdx.x} * splits + split) * a.kv_heads + kv_head) * kRows;
  for (int i = tid; i < packed * HD / 4; i += kWarps * 32) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 o = reinterpret_cast<const float4*>(outputs + w * kRows * HD)[i];
      sum.x += o.x, sum.y += o.y, sum.z += o.z, sum.w += o.w;
    }
    reinterpret_cast<float4*>(a.part + slot * HD)[i] = sum;
  }
  if (tid < packed) {
    float best = stats[0][tid][0], sum = 0;
#pragma unroll
    for (int w = 1; w < kWarps; ++w) best = fmaxf(best, stats[w][tid][0]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += stats[w][tid][1] * power(stats[w][tid][0], best, a.exponent);
    reinterpret_cast<float2*>(a.part_stats)[slot + tid] = make_float2(best, sum);
  }
}

template <int HD, int NB, bool kCodes>
void split_and_merge(const AttentionFlash& a, cudaStream_t stream) {
  constexpr int kRows = 8 * NB, kBytes = kWarps * kRows * HD * 4;
  const auto kernel = attention_split_kernel<HD, NB, kCodes>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int most = most_splits(a.sequences), splits = launched_splits(a);
  const auto heads = static_cast<unsigned>(a.kv_heads);
  for (int first = 0; first < a.sequences; first += kSplitSlots) {
    const auto count = static_cast<unsigned>(std::min(kSplitSlots, a.sequences - first));
    launch({.grid = dim3(count, heads, static_cast<unsigned>(splits)),
            .block = dim3(kWarps * 32),
            .shared_bytes = kBytes,
            .stream = stream},
           kernel, a, first, splits, most);
    attention_merge(a, {.first_sequence = first, .sequences = static_cast<int>(count), .splits = splits, .rows = kRows},
                    stream);
  }
}

template <int HD, bool kCodes>
void split_in(const AttentionFlash& a, cudaStream_t stream) {
  packed_rows(a) == 8 ? split_and_merge<HD, 1, kCodes>(a, stream) : split_and_merge<HD, 2, kCodes>(a, stream);
}

template <int HD>
void split_of(const AttentionFlash& a, cudaStream_t stream) {
  a.codes ? split_in<HD, true>(a, stream) : split_in<HD, false>(a, stream);
}

}  // namespace

void attention_split(const AttentionFlash& a, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (a.head_dim == 64) return split_of<64>(a, on);
  if (a.head_dim == 128) return split_of<128>(a, on);
  split_of<256>(a, on);
}

}  // namespace mettle::cuda
