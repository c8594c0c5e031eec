// Through the chunks of a sequence. A block owns 32 columns of a value head, eight warps: for 16 columns each, two that
// hold halves of the state's rows for u, and two with the same halves for o. All hold them transposed, as float32 sums
// of tensor cores. The first two multiply their halves by k, add, find u and hand it over; the others multiply by q
// meanwhile and add and write o. All four write u to their state, so the state itself never leaves the registers. Of
// the sums over 32 rows a warp of a pair finishes the earlier or the later 16.
#include "ops/cuda/device/gdn_history.cuh"
#include "ops/cuda/device/gdn_pairs.cuh"
#include "ops/cuda/gdn_chunked.h"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kRows = kGdnChunk, kTiles = kRows / 8, kThreads = kGdnScanThreads;

template <int DK>
struct Stage {  // one chunk
  uint16_t keys[4 * gdn_key_part(DK)];
  uint16_t solved[4 * kGdnSolvedPart];
  float decays[2][kRows];
  float v[kRows][kGdnColumns + 4];
};
using Tile = float4[32];  // as a product leaves it, by lane
template <int DK>
struct Shared {
  Stage<DK> stage[2];
  Tile part[2][2][2][kTiles];  // [for u, for o][column group][half of the state's rows]: sums over that half
  Tile u[2][kTiles];           // [column group]
};

// What a thread copies of a chunk; with every fetch it moves on to the next.
template <int DK>
struct Source {
  const uint16_t *keys, *solved;
  const float *decays, *v;
  int rows;  // of the sequence, from this thread's row of v on

  __device__ __forceinline__ Source(const GdnRecurrent& a, const GdnChunks& chunks, const DeviceSequence& s, int head,
                                    int part, int channels) {
    const int tid = static_cast<int>(threadIdx.x), row = tid / 8, key_head = head / (a.value_heads / a.key_heads);
    const int64_t slot = gdn_first_chunk(s.first_row), item = slot * a.value_heads + head;
    keys = chunks.keys + (slot * a.key_heads + key_head) * 4 * gdn_key_part(DK) + tid * 8;
    solved = chunks.solved + item * 4 * kGdnSolvedPart + tid * 8;
    decays = chunks.decays + item * 2 * kRows + tid * 4;
    v = a.conv + int64_t{s.first_row + row} * channels + 2 * a.key_heads * DK + head * a.dv + part * kGdnColumns +
        tid % 8 * 4;
    rows = s.q_len - row;
  }

  __device__ __forceinline__ void fetch(const GdnRecurrent& a, Stage<DK>& to, int channels) {
    static_assert(kThreads / 8 == kRows);
    const int tid = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int at = 0; at < 4 * gdn_key_part(DK); at += kThreads * 8)
      ptx::copy_async_16(to.keys + tid * 8 + at, keys + at, true);
#pragma unroll
    for (int at = 0; at < 4 * kGdnSolvedPart; at += kThreads * 8)
      ptx::copy_async_16(to.solved + tid * 8 + at, solved + at, true);
    if (tid < 2 * kRows / 4) ptx::copy_async_16(&to.decays[0][0] + tid * 4, decays, true);
    ptx::copy_async_16(&to.v[tid / 8][tid % 8 * 4], rows > 0 ? v : a.conv, rows > 0);
    ptx::copy_async_commit();
    keys += int64_t{a.key_heads} * 4 * gdn_key_part(DK);
    solved += int64_t{a.value_heads} * 4 * kGdnSolvedPart;
    decays += int64_t{a.value_heads} * 2 * kRows;
    v += int64_t{kRows} * channels;
    rows -= kRows;
  }
};

__device__ __forceinline__ void put(Tile& to, const float (&from)[4], int lane) {
  to[lane] = make_float4(from[0], from[1], from[2], from[3]);
}
__device__ __forceinline__ void get(float (&to)[4], const Tile& from, int lane) {
  const float4 x = from[lane];
  to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

// sum[16 columns x 32 rows] = half of the state [16 x DK / 2] times that of k^T or q^T. `keys`: its high part, the low
// part follows.
template <int DK>
__device__ __forceinline__ void multiply_state(float (&sum)[kTiles][4], const float (&state)[DK / 16][4],
                                               const uint16_t* keys, int half, int lane) {
  const uint16_t* part = keys + lane / 16 * gdn_key_part(DK);
#pragma unroll
  for (int step = 0; step < DK / 32; ++step) {
    uint32_t right[kTiles][4];
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
      ptx::load_matrices(right[n],
                         part + gdn_key_place(DK, 8 * n + lane % 8, half * (DK / 2) + 16 * step + lane / 8 % 2 * 8));
    LeftPair left;
    left.take(state[2 * step], state[2 * step + 1]);
    multiply_pairs(sum, left, right);
  }
}

// sum[16 columns x 16 rows, `later` or not] += x [16 x 32] times the transposed of a lower triangle; the earlier rows
// know nothing of the later ones.
__device__ __forceinline__ void multiply_solved(float (&sum)[2][4], const float (&x)[kTiles][4], const uint16_t* solved,
                                                bool later, int lane) {
  const uint16_t* part = solved + lane / 16 * kGdnSolvedPart;
  const int row = (later ? 16 : 0) + lane % 8;
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    if (step == 1 && !later) break;
    uint32_t right[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n)
      ptx::load_matrices(right[n], part + gdn_solved_place(row + 8 * n, 16 * step + lane / 8 % 2 * 8));
    LeftPair left;
    left.take(x[2 * step], x[2 * step + 1]);
    multiply_pairs(sum, left, right);
  }
}

// Half of the state [16 x DK / 2] += u [16 columns x 32 rows] times k.
template <int DK>
__device__ __forceinline__ void write_state(float (&state)[DK / 16][4], const float (&u)[kTiles][4],
                                            const uint16_t* keys, int half, int lane) {
  constexpr int kBatch = 4;
  const uint16_t* part = keys + lane / 16 * gdn_key_part(DK);
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step) {
    LeftPair left;
    left.take(u[2 * step], u[2 * step + 1]);
#pragma unroll
    for (int first = 0; first < DK / 16; first += kBatch) {
      uint32_t right[kBatch][4];
#pragma unroll
      for (int n = 0; n < kBatch; ++n)
        ptx::load_matrices_transposed(right[n], part + gdn_key_place(DK, 16 * step + lane / 8 % 2 * 8 + lane % 8,
                                                                     half * (DK / 2) + 8 * (first + n)));
      multiply_pairs(state + first, left, right);
    }
  }
}

// blockIdx: 32 columns, value head, sequence.
template <int DK>
__global__ __launch_bounds__(kThreads) void gdn_chunk_scan_kernel(GdnRecurrent a, GdnChunks chunks) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared<DK>& shared = *reinterpret_cast<Shared<DK>*>(memory);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32;
  const int half = tid / 32 % 2, group = tid / 64 % 2, role = tid / 128;  // role 0: u, 1: o
  const int part = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  // Of this lane, in every tile: columns `column` and column + 8; rows or state rows `pair` and pair + 1.
  const int own = group * 16 + lane / 4, column = part * kGdnColumns + own, pair = lane % 4 * 2;
  ptx::trigger();
  ptx::wait();
  const DeviceSequence s = a.sequence[blockIdx.z];
  if (s.q_len < chunks.least) return;
  const int channels = 2 * a.key_heads * DK + a.value_heads * a.dv, count = gdn_chunk_count(s.q_len);
  Source<DK> source(a, chunks, s, head, part, channels);
  source.fetch(a, shared.stage[0], channels);
  const int64_t all = int64_t{a.value_heads} * DK * a.dv;
  const int64_t at = (int64_t{head} * DK + half * (DK / 2) + pair) * a.dv + column;
  float state[DK / 16][4];
#pragma unroll
  for (int n = 0; n < DK / 16; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      state[n][e] = s.state_in < 0 ? 0.f : a.state[s.state_in * all + at + int64_t{8 * n + e % 2} * a.dv + e / 2 * 8];
  GdnHeadHistory history;
  const int rank = part * kThreads + tid, threads = a.dv / kGdnColumns * kThreads;
  history.load(a, s, head, rank, channels);

  // Where a warp of o writes, and how many rows of the sequence there are from its first on.
  const int values = a.value_heads * a.dv;
  float* out = a.read + int64_t{s.first_row + 16 * half + pair} * values + head * a.dv + column;
  int rows = s.q_len - 16 * half - pair;
  for (int c = 0; c < count; ++c) {
    ptx::copy_async_wait<0>();
    __syncthreads();  // this chunk is there for all, and the one before is read by all
    const Stage<DK>& in = shared.stage[c % 2];
    float read[kTiles][4] = {};
    multiply_state<DK>(read, state, in.keys + role * 2 * gdn_key_part(DK), half, lane);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) put(shared.part[role][group][half][n], read[n], lane);
    if (c + 1 < count) source.fetch(a, shared.stage[(c + 1) % 2], channels);
    const float whole = in.decays[0][kRows - 1];
#pragma unroll
    for (int n = 0; n < DK / 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[n][e] *= whole;
    float2 until[kTiles];
    float v[kTiles][4] = {};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      until[n] = *reinterpret_cast<const float2*>(&in.decays[0][8 * n + pair]);
      if (role == 0)
#pragma unroll
        for (int e = 0; e < 4; ++e) v[n][e] = in.v[8 * n + pair + e % 2][own + e / 2 * 8];
    }
    __syncthreads();  // the sums over half of the rows are there

#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float other[4];
      get(other, shared.part[role][group][half ^ 1][n], lane);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        read[n][e] = (read[n][e] + other[e]) * (e % 2 == 0 ? until[n].x : until[n].y);
        if (role == 0) read[n][e] = v[n][e] - read[n][e];
      }
    }
    float sum[2][4] = {};
    if (role == 0) {
      multiply_solved(sum, read, in.solved, half == 1, lane);
#pragma unroll
      for (int n = 0; n < 2; ++n) put(shared.u[group][2 * half + n], sum[n], lane);
    }
    __syncthreads();  // u is there
    float u[kTiles][4];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) get(u[n], shared.u[group][n], lane);
    if (role == 1) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[n][e] = half == 0 ? read[n][e] : read[2 + n][e];
      multiply_solved(sum, u, in.solved + 2 * kGdnSolvedPart, half == 1, lane);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (8 * n + e % 2 < rows) out[int64_t{8 * n + e % 2} * values + e / 2 * 8] = sum[n][e];
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) u[n][e] *= in.decays[1][8 * n + pair + e % 2];
    write_state<DK>(state, u, in.keys, half, lane);
    out += int64_t{kRows} * values;
    rows -= kRows;
  }
  if (role == 0) {
#pragma unroll
    for (int n = 0; n < DK / 16; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        a.state[s.state_out * all + at + int64_t{8 * n + e % 2} * a.dv + e / 2 * 8] = state[n][e];
  }
  history.finish(a, s, head, rank, threads, channels);
}

template <int DK>
void launch_scan(const GdnRecurrent& a, const GdnChunks& chunks, void* stream) {
  static_assert(sizeof(Shared<DK>) == gdn_scan_bytes(DK));
  CUDA_CHECK(cudaFuncSetAttribute(gdn_chunk_scan_kernel<DK>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(Shared<DK>))));
  launch({.grid = dim3(static_cast<unsigned>(a.dv / kGdnColumns), static_cast<unsigned>(a.value_heads),
                       static_cast<unsigned>(a.sequences)),
          .block = dim3(kThreads),
          .shared_bytes = sizeof(Shared<DK>),
          .stream = static_cast<cudaStream_t>(stream)},
         gdn_chunk_scan_kernel<DK>, a, chunks);
}

}  // namespace

void gdn_chunk_scan(const GdnRecurrent& a, const GdnChunks& chunks, void* stream) {
  a.dk == 64 ? launch_scan<64>(a, chunks, stream) : launch_scan<128>(a, chunks, stream);
}

void gdn_chunked(const GdnRecurrent& a, GdnChunks chunks, void* stream) {
  const bool alone = a.sequences == 1;
  chunks.least = alone ? 1 : kGdnShort + 1;
  gdn_chunk_conv(a, stream);
  gdn_chunk_prepare(a, chunks, stream);
  gdn_chunk_scan(a, chunks, stream);
  if (alone) return;
  GdnRecurrent rest = a;
  rest.longest = kGdnShort;
  gdn_four_rows(rest, stream);
}

}  // namespace mettle::cuda
