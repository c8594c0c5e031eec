// What a chunk needs that does not need the state: q and k as pairs of bf16, and for each value head the inverse of
// I + beta d (k k^T) and d (q k^T). A block owns a chunk of a key head, one of its warps one of these matrices at a
// time.
#include "ops/cuda/device/gdn_pairs.cuh"
#include "ops/cuda/gdn_chunked.h"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32, kRows = kGdnChunk;

template <int DK>
struct Vectors {
  float k[kRows][DK + 4], q[kRows][DK + 4];
};
// Of a warp, once the dots are there: the matrix to be inverted, then a result on its way out.
union Work {
  float m[kRows][kRows + 4];
  uint16_t solved[2 * kGdnSolvedPart];
};
template <int DK>
union Memory {
  Vectors<DK> in;
  Work work[kWarps];
};
struct Dots {
  float kk[kRows][kRows + 1], qk[kRows][kRows + 1];  // [later][earlier]
};

// Rows first .. first + rows - 1 of the step; what is beyond them counts as zeros.
struct Chunk {
  int first, rows;
};

// The chunk of a slot, rows 0 where the slot is empty.
__device__ __forceinline__ Chunk chunk_of(const GdnRecurrent& a, const GdnChunks& chunks, int slot) {
  __shared__ Chunk found;
  if (threadIdx.x == 0) found = {0, 0};
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < a.sequences; i += kThreads) {
    const DeviceSequence s = a.sequence[i];
    const int index = slot - gdn_first_chunk(s.first_row);
    if (s.q_len >= chunks.least && index >= 0 && index < gdn_chunk_count(s.q_len))
      found = {s.first_row + index * kRows, min(kRows, s.q_len - index * kRows)};
  }
  __syncthreads();
  return found;
}

// q and k into shared memory as they are, and out again as pairs.
template <int DK>
__device__ __forceinline__ void take_vectors(const GdnRecurrent& a, const Chunk& chunk, int key_head, Vectors<DK>& in,
                                             uint16_t* keys) {
  constexpr int kPieces = DK / 4;
  const int channels = 2 * a.key_heads * DK + a.value_heads * a.dv;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kRows * kPieces; i += kThreads) {
    const int of_q = i / (kRows * kPieces), row = i / kPieces % kRows, at = i % kPieces * 4;
    const int head = (of_q ? 0 : a.key_heads) + key_head;
    float4 x = make_float4(0, 0, 0, 0);
    if (row < chunk.rows)
      x = *reinterpret_cast<const float4*>(a.conv + int64_t{chunk.first + row} * channels + head * DK + at);
    *reinterpret_cast<float4*>(of_q ? &in.q[row][at] : &in.k[row][at]) = x;
    uint2 high, low;
    split_pair(x.x, x.y, high.x, low.x);
    split_pair(x.z, x.w, high.y, low.y);
    uint16_t* to = keys + of_q * 2 * gdn_key_part(DK) + gdn_key_place(DK, row, at);
    *reinterpret_cast<uint2*>(to) = high;
    *reinterpret_cast<uint2*>(to + gdn_key_part(DK)) = low;
  }
}

// k k^T and q k^T in float32, without the earlier rows times the later ones. A thread has an early and a late row, and
// four columns.
template <int DK>
__device__ __forceinline__ void multiply_vectors(const Vectors<DK>& in, Dots& dots) {
  const int row = static_cast<int>(threadIdx.x) / 8, column = static_cast<int>(threadIdx.x) % 8;
  float kk[2][4] = {}, qk[2][4] = {};
#pragma unroll 2
  for (int at = 0; at < DK; at += 4) {
    float4 k[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) k[j] = *reinterpret_cast<const float4*>(&in.k[column + 8 * j][at]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 x = *reinterpret_cast<const float4*>(&in.k[row + 16 * i][at]);
      const float4 y = *reinterpret_cast<const float4*>(&in.q[row + 16 * i][at]);
#pragma unroll
      for (int j = 0; j < 2 + 2 * i; ++j) {
        kk[i][j] = fmaf(x.x, k[j].x, fmaf(x.y, k[j].y, fmaf(x.z, k[j].z, fmaf(x.w, k[j].w, kk[i][j]))));
        qk[i][j] = fmaf(y.x, k[j].x, fmaf(y.y, k[j].y, fmaf(y.z, k[j].z, fmaf(y.w, k[j].w, qk[i][j]))));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 2 + 2 * i; ++j)
      dots.kk[row + 16 * i][column + 8 * j] = kk[i][j], dots.qk[row + 16 * i][column + 8 * j] = qk[i][j];
}

// A column of two rows into the warp's memory, and all of it out.
__device__ __forceinline__ void put_solved(uint16_t* to, int row, int column, float x, float next) {
  uint32_t high, low;
  split_pair(x, next, high, low);
  const int at = gdn_solved_place(row, column), below = gdn_solved_place(row + 1, column);
  to[at] = static_cast<uint16_t>(high), to[below] = static_cast<uint16_t>(high >> 16);
  to[at + kGdnSolvedPart] = static_cast<uint16_t>(low), to[below + kGdnSolvedPart] = static_cast<uint16_t>(low >> 16);
}
__device__ __forceinline__ void store_solved(uint16_t* to, const uint16_t* from, int lane) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2 * kGdnSolvedPart; i += 32 * 8)
    *reinterpret_cast<uint4*>(to + i + lane * 8) = *reinterpret_cast<const uint4*>(from + i + lane * 8);
  __syncwarp();
}

// The two matrices of a value head, each by a warp; a lane owns a column. `after` is the product of the decays of the
// rows behind it up to the row at hand: taken row by row, never as a quotient, as a decay may be zero.
__device__ __forceinline__ void weigh_outputs(float decay, const Dots& dots, uint16_t* result, float* decays,
                                              int lane) {
  float until = decay;
#pragma unroll
  for (int d = 1; d < kRows; d *= 2) {
    const float before = __shfl_up_sync(kAllLanes, until, d);
    if (lane >= d) until *= before;
  }
  float after = 1;
#pragma unroll 4
  for (int row = 0; row < kRows; row += 2) {
    float x[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float of_row = __shfl_sync(kAllLanes, decay, row + i);
      if (row + i > lane) after *= of_row;
      x[i] = row + i >= lane ? after * dots.qk[row + i][lane] : 0.f;
    }
    put_solved(result, row, lane, x[0], x[1]);
  }
  decays[lane] = until;
  decays[kRows + lane] = after;
}

__device__ __forceinline__ void invert(float beta, float decay, const Dots& dots, Work& work, int lane) {
  float after = 1;
#pragma unroll 4
  for (int row = 0; row < kRows; ++row) {
    const float beta_of_row = __shfl_sync(kAllLanes, beta, row), decay_of_row = __shfl_sync(kAllLanes, decay, row);
    if (row > lane) after *= decay_of_row;
    work.m[row][lane] = row > lane ? beta_of_row * (after * dots.kk[row][lane]) : 0.f;
  }
  __syncwarp();
  float t[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float sum[4] = {row == lane ? 1.f : 0.f, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < row; j += 4) {
      const float4 x = *reinterpret_cast<const float4*>(&work.m[row][j]);
      sum[0] = fmaf(-x.x, t[j], sum[0]);
      if (j + 1 < row) sum[1] = fmaf(-x.y, t[j + 1], sum[1]);
      if (j + 2 < row) sum[2] = fmaf(-x.z, t[j + 2], sum[2]);
      if (j + 3 < row) sum[3] = fmaf(-x.w, t[j + 3], sum[3]);
    }
    t[row] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
  __syncwarp();  // m is read by all
#pragma unroll
  for (int row = 0; row < kRows; row += 2) put_solved(work.solved, row, lane, t[row] * beta, t[row + 1] * beta);
}

// blockIdx: slot, key head.
template <int DK>
__global__ __launch_bounds__(kThreads) void gdn_chunk_prepare_kernel(GdnRecurrent a, GdnChunks chunks) {
  __shared__ __align__(16) Memory<DK> memory;
  __shared__ Dots dots;
  const int slot = static_cast<int>(blockIdx.x), key_head = static_cast<int>(blockIdx.y);
  ptx::trigger();
  ptx::wait();
  const Chunk chunk = chunk_of(a, chunks, slot);
  if (chunk.rows == 0) return;
  take_vectors<DK>(a, chunk, key_head, memory.in,
                   chunks.keys + (int64_t{slot} * a.key_heads + key_head) * 4 * gdn_key_part(DK));
  __syncthreads();
  multiply_vectors<DK>(memory.in, dots);
  __syncthreads();  // the dots are there, and the vectors are read by all
  const int heads = a.value_heads / a.key_heads, lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  Work& work = memory.work[warp];
  for (int i = warp; i < 2 * heads; i += kWarps) {
    const int head = key_head * heads + i / 2;
    const int64_t item = int64_t{slot} * a.value_heads + head;
    uint16_t* solved = chunks.solved + item * 4 * kGdnSolvedPart;
    float2 gate = make_float2(0, 1);  // beta, decay: a row that does nothing
    if (lane < chunk.rows)
      gate = reinterpret_cast<const float2*>(a.gates)[int64_t{chunk.first + lane} * a.value_heads + head];
    if (i % 2 == 0) {
      invert(gate.x, gate.y, dots, work, lane);
      store_solved(solved, work.solved, lane);
    } else {
      weigh_outputs(gate.y, dots, work.solved, chunks.decays + item * 2 * kRows, lane);
      store_solved(solved + 2 * kGdnSolvedPart, work.solved, lane);
    }
  }
}

}  // namespace

void gdn_chunk_prepare(const GdnRecurrent& a, const GdnChunks& chunks, void* stream) {
  const Launch l{.grid = dim3(static_cast<unsigned>(chunks.slots), static_cast<unsigned>(a.key_heads)),
                 .block = dim3(kThreads),
                 .stream = static_cast<cudaStream_t>(stream)};
  a.dk == 64 ? launch(l, gdn_chunk_prepare_kernel<64>, a, chunks) : launch(l, gdn_chunk_prepare_kernel<128>, a, chunks);
}

}  // namespace mettle::cuda
