// Longer sequences: tiles of 128 packed rows against 64 keys at a time, scores and outputs in registers, the next keys
// and values on their way while these are multiplied. One launch for a ragged batch: a block finds its tile by itself.
// Codes are copied as they are and widened to bf16 by the thread that copied them, between two barriers.
#include "ops/cuda/attention_flash.h"
#include "ops/cuda/device/cache_codes.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/device/softmax.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = kTileRows / 16;

__device__ __forceinline__ uint32_t address_of(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
// Four 8x8 matrices of bf16; as they lie, or transposed.
__device__ __forceinline__ void load_matrices(uint32_t* r, uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t* r, uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
// Byte of 16-byte chunk `chunk` of a row of HD values: chunks are exchanged so that eight rows of one chunk lie in
// different banks.
template <int HD>
__device__ __forceinline__ uint32_t place(int row, int chunk) {
  return static_cast<uint32_t>(row * HD * 2 + ((chunk ^ (row & 7)) << 4));
}

// The tile that a block takes: of which sequence, from which packed row. Late tiles see the most keys and go first.
struct Tile {
  int sequence, first;
};
__device__ __forceinline__ Tile tile_of(const AttentionFlash& a, int index) {
  __shared__ Tile found;
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane == 0) found = {-1, 0};
    __syncwarp();
    int before = 0;
    for (int base = 0; base < a.sequences && before <= index; base += 32) {
      const int q_len = base + lane < a.sequences ? a.sequence[base + lane].q_len : 0;
      const int own = a.few(q_len) ? 0 : (q_len * a.group() + kTileRows - 1) / kTileRows;
      int sum = own;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(kAllLanes, sum, d);
        if (lane >= d) sum += other;
      }
      const int begin = before + sum - own;
      if (index >= begin && index < begin + own) found = {base + lane, (index - begin) * kTileRows};
      before += __shfl_sync(kAllLanes, sum, 31);
    }
  }
  __syncthreads();
  return found;
}

template <int HD>
__device__ __forceinline__ void fetch_keys(const AttentionFlash& a, const void* from, const int32_t* table, int kv_head,
                                           int key0, int keys, char* to) {
  const auto* cache = static_cast<const uint16_t*>(from);
  constexpr int kChunks = HD / 8, kAtOnce = kWarps * 32 / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, first = static_cast<int>(threadIdx.x) / kChunks;
#pragma unroll
  for (int i = 0; i < kTileKeys / kAtOnce; ++i) {
    const int row = first + i * kAtOnce, key = key0 + row;
    const bool ok = key < keys;
    ptx::copy_async_16(to + place<HD>(row, chunk), ok ? cache + a.cache_at(table, key, kv_head) + 8 * chunk : cache,
                       ok);
  }
}

// The same of codes, as they are: row by row, 16 a chunk.
template <int HD>
__device__ __forceinline__ void fetch_codes(const AttentionFlash& a, const void* from, const int32_t* table,
                                            int kv_head, int key0, int keys, char* to) {
  const auto* cache = static_cast<const uint8_t*>(from);
  constexpr int kChunks = HD / 16;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kChunks; i += kWarps * 32) {
    const int row = i / kChunks, chunk = i % kChunks, key = key0 + row;
    const bool ok = key < keys;
    ptx::copy_async_16(to + 16 * i, ok ? cache + a.cache_at(table, key, kv_head) + 16 * chunk : cache, ok);
  }
}
// What fetch_codes() of the same thread brought, as rows of fetch_keys().
template <int HD>
__device__ __forceinline__ void widen_keys(const char* from, char* to) {
  constexpr int kChunks = HD / 16;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kChunks; i += kWarps * 32) {
    const uint4 codes = *reinterpret_cast<const uint4*>(from + 16 * i);
    uint32_t pair[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) widen_codes(ptx::word(codes, j), pair + 2 * j);
    if (holds_nan(codes.x) | holds_nan(codes.y) | holds_nan(codes.z) | holds_nan(codes.w)) {
#pragma unroll
      for (int j = 0; j < 4; ++j) widen_codes_with_nan(ptx::word(codes, j), pair + 2 * j);
    }
    const int row = i / kChunks, chunk = i % kChunks;
    *reinterpret_cast<uint4*>(to + place<HD>(row, 2 * chunk)) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    *reinterpret_cast<uint4*>(to + place<HD>(row, 2 * chunk + 1)) = make_uint4(pair[4], pair[5], pair[6], pair[7]);
  }
}

template <int HD, bool kCodes>
__global__ __launch_bounds__(kWarps * 32, 1) void attention_tiles_kernel(AttentionFlash a) {
  constexpr int kStage = kTileKeys * HD * 2, kStages = kCodes ? 1 : 2;
  extern __shared__ uint4 shared[];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32), g = lane / 4,
            t = lane % 4;
  const int kv_head = static_cast<int>(blockIdx.y), group = a.group();
  ptx::trigger();
  const Tile tile = tile_of(a, static_cast<int>(gridDim.x - 1 - blockIdx.x));  // the batch: no kernel writes it
  ptx::wait();
  if (tile.sequence < 0) return;
  const DeviceSequence s = a.sequence[tile.sequence];
  const int packed = s.q_len * group, keys = s.ctx_len + s.q_len;
  const int32_t* table = a.blocks + s.block_begin;
  // Keys that the last row of the tile sees, and the first.
  const int last = min(packed, tile.first + kTileRows) - 1;
  const int most = s.ctx_len + last / group + 1, least = s.ctx_len + tile.first / group + 1;
  const int steps = (most + kTileKeys - 1) / kTileKeys;

  // Queries, stages of keys, of values, the next keys' codes, the next values'.
  constexpr uint32_t kKeysAt = kTileRows * HD * 2, kValuesAt = kKeysAt + kStages * kStage;
  constexpr uint32_t kCodesAt = kValuesAt + kStage;
  char* const memory = reinterpret_cast<char*>(shared);
  const uint32_t q_at = address_of(shared), k_at = q_at + kKeysAt, v_at = q_at + kValuesAt;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * HD / 8; i += kWarps * 32) {
    const int row = i / (HD / 8), chunk = i % (HD / 8), p = tile.first + row;
    const bool ok = p < packed;
    const uint16_t* from =
        ok ? a.q + (int64_t{s.first_row + p / group} * a.heads + kv_head * group + p % group) * HD + 8 * chunk : a.q;
    ptx::copy_async_16(memory + place<HD>(row, chunk), from, ok);
  }
  const auto fetch = [&](int key0, uint32_t stage) {
    if constexpr (kCodes) {
      fetch_codes<HD>(a, a.k_cache, table, kv_head, key0, keys, memory + kCodesAt);
      fetch_codes<HD>(a, a.v_cache, table, kv_head, key0, keys, memory + kCodesAt + kStage / 2);
    } else {
      fetch_keys<HD>(a, a.k_cache, table, kv_head, key0, keys, memory + kKeysAt + stage);
      fetch_keys<HD>(a, a.v_cache, table, kv_head, key0, keys, memory + kValuesAt + stage);
    }
    ptx::copy_async_commit();
  };
  fetch(0, 0);

  int visible[2];
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  float o[HD / 8][4] = {};
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const int p = tile.first + warp * 16 + g + 8 * b;
    visible[b] = p < packed ? s.ctx_len + p / group + 1 : 0;
  }

  for (int step = 0; step < steps; ++step) {
    ptx::copy_async_wait<0>();
    __syncthreads();  // these keys are there for all, and the others are read by all
    if constexpr (kCodes) {
      widen_keys<HD>(memory + kCodesAt, memory + kKeysAt);
      widen_keys<HD>(memory + kCodesAt + kStage / 2, memory + kValuesAt);
      __syncthreads();  // and as bf16; the codes may be overwritten
    }
    const uint32_t stage = kCodes ? 0 : (step & 1) * kStage, other = kStage - stage;
    if (step + 1 < steps) fetch((step + 1) * kTileKeys, other);
    float score[kTileKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < HD / 16; ++k) {
      uint32_t rows[4];
      load_matrices(rows, q_at + place<HD>(warp * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
      for (int n = 0; n < kTileKeys / 16; ++n) {
        uint32_t b[4];
        load_matrices(b, k_at + stage + place<HD>(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
        ptx::mma_16816(score[2 * n], rows, b[0], b[1]);
        ptx::mma_16816(score[2 * n + 1], rows, b[2], b[3]);
      }
    }
    const int key0 = step * kTileKeys;
    if (key0 + kTileKeys > least) {
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (key0 + 8 * n + 2 * t + i % 2 >= visible[i / 2]) score[n][i] = -INFINITY;
    }
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      float best = top[b];
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n) best = fmaxf(best, fmaxf(score[n][2 * b], score[n][2 * b + 1]));
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 1));
      best = fmaxf(best, __shfl_xor_sync(kAllLanes, best, 2));
      const float keep = power(top[b], best, a.exponent);
      top[b] = best;
      float added = 0;
#pragma unroll
      for (int n = 0; n < kTileKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          score[n][2 * b + i] = power(score[n][2 * b + i], best, a.exponent);
          added += score[n][2 * b + i];
        }
      sum[b] = sum[b] * keep + added;
#pragma unroll
      for (int n = 0; n < HD / 8; ++n) o[n][2 * b] *= keep, o[n][2 * b + 1] *= keep;
    }
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
      const uint32_t p[4] = {pack_bf16(score[2 * k][0], score[2 * k][1]), pack_bf16(score[2 * k][2], score[2 * k][3]),
                             pack_bf16(score[2 * k + 1][0], score[2 * k + 1][1]),
                             pack_bf16(score[2 * k + 1][2], score[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < HD / 16; ++n) {
        uint32_t b[4];
        load_transposed(b, v_at + stage + place<HD>(16 * k + lane % 16, 2 * n + lane / 16));
        ptx::mma_16816(o[2 * n], p, b[0], b[1]);
        ptx::mma_16816(o[2 * n + 1], p, b[2], b[3]);
      }
    }
  }

#pragma unroll
  for (int b = 0; b < 2; ++b) {
    sum[b] += __shfl_xor_sync(kAllLanes, sum[b], 1);
    sum[b] += __shfl_xor_sync(kAllLanes, sum[b], 2);
    const int p = tile.first + warp * 16 + g + 8 * b;
    if (p >= packed) continue;
    const int row = s.first_row + p / group, head = kv_head * group + p % group;
    const float scale = 1.f / sum[b] * a.v_scale;
    const float* gates = a.qkv + int64_t{row} * a.qkv_width() + (2 * head + 1) * HD;
    uint16_t* core = a.core + (int64_t{row} * a.heads + head) * HD;
#pragma unroll
    for (int n = 0; n < HD / 8; ++n) {
      const int dim = 8 * n + 2 * t;
      float x = o[n][2 * b] * scale, y = o[n][2 * b + 1] * scale;
      if (a.gate) {
        const float2 gate = *reinterpret_cast<const float2*>(gates + dim);
        x *= sigmoid(gate.x), y *= sigmoid(gate.y);
      }
      *reinterpret_cast<uint32_t*>(core + dim) = pack_bf16(x, y);
    }
  }
}

template <int HD, bool kCodes>
void tiles_in(const AttentionFlash& a, cudaStream_t stream) {
  constexpr int kBytes = tile_shared_bytes(HD, kCodes);
  CUDA_CHECK(
      cudaFuncSetAttribute(attention_tiles_kernel<HD, kCodes>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  launch({.grid = dim3(static_cast<unsigned>(launched_tiles(a)), static_cast<unsigned>(a.kv_heads)),
          .block = dim3(kWarps * 32),
          .shared_bytes = kBytes,
          .stream = stream},
         attention_tiles_kernel<HD, kCodes>, a);
}

template <int HD>
void tiles_of(const AttentionFlash& a, cudaStream_t stream) {
  a.codes ? tiles_in<HD, true>(a, stream) : tiles_in<HD, false>(a, stream);
}

}  // namespace

void attention_tiles(const AttentionFlash& a, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (a.head_dim == 64) return tiles_of<64>(a, on);
  if (a.head_dim == 128) return tiles_of<128>(a, on);
  tiles_of<256>(a, on);
}

}  // namespace mettle::cuda
