// Through the chunks of a sequence. A block owns 32 columns of a value head, two warps each 16 of them, and both hold
// the same 16 columns of the state, transposed, as float32 sums of tensor cores: one multiplies it by k, finds u and
// hands it over, the other multiplies it by q meanwhile and writes o. Both write u to their state, so the state itself
// never leaves the registers.
#include <type_traits>

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
template <int DK>
struct Shared {
  Stage<DK> stage[2];
  float4 u[2][kTiles][32];  // [column group][tile][lane]
};

// What a thread copies of a chunk; with every fetch it moves on to the next.
template <int DK, bool PAIRS>
struct Source {
  const uint16_t *keys, *solved;
  const float *decays, *v;
  int rows;  // of the sequence, from this thread's first row of v on

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

  // Of pairs both parts, else the first and the third of four: the high parts.
  template <int PART>
  static __device__ __forceinline__ void copy(uint16_t* to, const uint16_t* from) {
#pragma unroll
    for (int part = 0; part < 4; part += PAIRS ? 1 : 2)
#pragma unroll
      for (int at = part * PART; at < (part + 1) * PART; at += kThreads * 8)
        ptx::copy_async_16(to + static_cast<int>(threadIdx.x) * 8 + at, from + at, true);
  }
  __device__ __forceinline__ void fetch(const GdnRecurrent& a, Stage<DK>& to, int channels) {
    const int tid = static_cast<int>(threadIdx.x);
    copy<gdn_key_part(DK)>(to.keys, keys);
    copy<kGdnSolvedPart>(to.solved, solved);
    if (tid < 2 * kRows / 4) ptx::copy_async_16(&to.decays[0][0] + tid * 4, decays, true);
#pragma unroll
    for (int i = 0; i < kRows; i += kThreads / 8) {
      const bool ok = i < rows;
      ptx::copy_async_16(&to.v[tid / 8 + i][tid % 8 * 4], ok ? v + int64_t{i} * channels : a.conv, ok);
    }
    ptx::copy_async_commit();
    keys += int64_t{a.key_heads} * 4 * gdn_key_part(DK);
    solved += int64_t{a.value_heads} * 4 * kGdnSolvedPart;
    decays += int64_t{a.value_heads} * 2 * kRows;
    v += int64_t{kRows} * channels;
    rows -= kRows;
  }
};

// sum[16 columns x 32 rows] += state [16 x DK] times k^T or q^T. `keys`: its high part, the low part follows.
template <int DK, bool PAIRS>
__device__ __forceinline__ void multiply_state(float (&sum)[kTiles][4], const float (&state)[DK / 8][4],
                                               const uint16_t* keys, int lane) {
  using Keys = Right<PAIRS, kTiles>;
  const uint16_t* part = keys + Keys::part(gdn_key_part(DK), lane);
#pragma unroll
  for (int step = 0; step < DK / 16; ++step) {
    Keys right;
#pragma unroll
    for (int i = 0; i < Keys::kLoads; ++i)
      ptx::load_matrices(right.word[i],
                         part + gdn_key_place(DK, 8 * Keys::tile(i, lane) + lane % 8, 16 * step + lane / 8 % 2 * 8));
    LeftPair left;
    left.take(state[2 * step], state[2 * step + 1]);
    multiply_pairs(sum, left, right);
  }
}

// sum[16 x 32] += x [16 x 32] times the transposed of a lower triangle, of which only tiles that are not zero are read.
template <bool PAIRS>
__device__ __forceinline__ void multiply_solved(float (&sum)[kTiles][4], const float (&x)[kTiles][4],
                                                const uint16_t* solved, int lane) {
  using All = Right<PAIRS, kTiles>;
  using Late = Right<PAIRS, kTiles / 2>;
  const uint16_t* part = solved + All::part(kGdnSolvedPart, lane);
  LeftPair left[2];
  left[0].take(x[0], x[1]);
  left[1].take(x[2], x[3]);
  All right;
  Late late;
#pragma unroll
  for (int i = 0; i < All::kLoads; ++i)
    ptx::load_matrices(right.word[i], part + gdn_solved_place(8 * All::tile(i, lane) + lane % 8, lane / 8 % 2 * 8));
#pragma unroll
  for (int i = 0; i < Late::kLoads; ++i)
    ptx::load_matrices(late.word[i],
                       part + gdn_solved_place(16 + 8 * Late::tile(i, lane) + lane % 8, 16 + lane / 8 % 2 * 8));
  multiply_pairs(sum, left[0], right);
  multiply_pairs(sum + 2, left[1], late);
}

// state [16 x DK] += u [16 columns x 32 rows] times k.
template <int DK, bool PAIRS>
__device__ __forceinline__ void write_state(float (&state)[DK / 8][4], const float (&u)[kTiles][4],
                                            const uint16_t* keys, int lane) {
  constexpr int kBatch = PAIRS ? 4 : 8;
  using Keys = Right<PAIRS, kBatch>;
  const uint16_t* part = keys + Keys::part(gdn_key_part(DK), lane);
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step) {
    LeftPair left;
    left.take(u[2 * step], u[2 * step + 1]);
#pragma unroll
    for (int first = 0; first < DK / 8; first += kBatch) {
      Keys right;
#pragma unroll
      for (int i = 0; i < Keys::kLoads; ++i)
        ptx::load_matrices_transposed(right.word[i], part + gdn_key_place(DK, 16 * step + lane / 8 % 2 * 8 + lane % 8,
                                                                          8 * (first + Keys::tile(i, lane))));
      multiply_pairs(state + first, left, right);
    }
  }
}

// blockIdx: 32 columns, value head, sequence.
template <int DK, bool PAIRS>
__global__ __launch_bounds__(kThreads) void gdn_chunk_scan_kernel(GdnRecurrent a, GdnChunks chunks) {
  extern __shared__ __align__(128) uint8_t memory[];
  Shared<DK>& shared = *reinterpret_cast<Shared<DK>*>(memory);
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, group = tid / 32 % 2;
  const bool reads_q = tid >= kThreads / 2;
  const int part = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  // Of this lane, in every tile: columns `column` and column + 8; rows or state rows `pair` and pair + 1.
  const int own = group * 16 + lane / 4, column = part * kGdnColumns + own, pair = lane % 4 * 2;
  ptx::trigger();
  ptx::wait();
  const DeviceSequence s = a.sequence[blockIdx.z];
  if (s.q_len < chunks.least) return;
  const int channels = 2 * a.key_heads * DK + a.value_heads * a.dv;
  const int count = gdn_chunk_count(s.q_len);
  Source<DK, PAIRS> source(a, chunks, s, head, part, channels);
  source.fetch(a, shared.stage[0], channels);
  const int64_t all = int64_t{a.value_heads} * DK * a.dv, at = (int64_t{head} * DK + pair) * a.dv + column;
  float state[DK / 8][4];
#pragma unroll
  for (int n = 0; n < DK / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      state[n][e] = s.state_in < 0 ? 0.f : a.state[s.state_in * all + at + int64_t{8 * n + e % 2} * a.dv + e / 2 * 8];
  GdnHeadHistory history;
  const int rank = part * kThreads + tid, threads = a.dv / kGdnColumns * kThreads;
  history.load(a, s, head, rank, channels);

  for (int c = 0; c < count; ++c) {
    ptx::copy_async_wait<0>();
    __syncthreads();  // this chunk is there for all, and the one before is read by all
    const Stage<DK>& in = shared.stage[c % 2];
    float read[kTiles][4] = {};
    multiply_state<DK, PAIRS>(read, state, in.keys + (reads_q ? 2 : 0) * gdn_key_part(DK), lane);
    if (c + 1 < count) source.fetch(a, shared.stage[(c + 1) % 2], channels);
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) read[n][e] *= in.decays[0][8 * n + pair + e % 2];
    float u[kTiles][4];
    if (!reads_q) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          read[n][e] = in.v[8 * n + pair + e % 2][own + e / 2 * 8] - read[n][e];
          u[n][e] = 0;
        }
      multiply_solved<PAIRS>(u, read, in.solved, lane);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) shared.u[group][n][lane] = make_float4(u[n][0], u[n][1], u[n][2], u[n][3]);
      ptx::pair_arrive(1 + group);
    } else {
      ptx::pair_wait(1 + group);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float4 x = shared.u[group][n][lane];
        u[n][0] = x.x, u[n][1] = x.y, u[n][2] = x.z, u[n][3] = x.w;
      }
      multiply_solved<PAIRS>(read, u, in.solved + 2 * kGdnSolvedPart, lane);
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = c * kRows + 8 * n + pair + e % 2;
          if (row < s.q_len)
            a.read[(int64_t{s.first_row + row} * a.value_heads + head) * a.dv + column + e / 2 * 8] = read[n][e];
        }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) u[n][e] *= in.decays[1][8 * n + pair + e % 2];
    const float whole = in.decays[0][kRows - 1];
#pragma unroll
    for (int n = 0; n < DK / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) state[n][e] *= whole;
    write_state<DK, PAIRS>(state, u, in.keys, lane);
  }
  if (!reads_q) {
#pragma unroll
    for (int n = 0; n < DK / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        a.state[s.state_out * all + at + int64_t{8 * n + e % 2} * a.dv + e / 2 * 8] = state[n][e];
  }
  history.finish(a, s, head, rank, threads, channels);
}

template <int DK, bool PAIRS>
void launch_scan(const GdnRecurrent& a, const GdnChunks& chunks, void* stream) {
  static_assert(sizeof(Shared<DK>) == gdn_scan_bytes(DK));
  CUDA_CHECK(cudaFuncSetAttribute(gdn_chunk_scan_kernel<DK, PAIRS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(Shared<DK>))));
  launch({.grid = dim3(static_cast<unsigned>(a.dv / kGdnColumns), static_cast<unsigned>(a.value_heads),
                       static_cast<unsigned>(a.sequences)),
          .block = dim3(kThreads),
          .shared_bytes = sizeof(Shared<DK>),
          .stream = static_cast<cudaStream_t>(stream)},
         gdn_chunk_scan_kernel<DK, PAIRS>, a, chunks);
}

}  // namespace

void gdn_chunk_scan(const GdnRecurrent& a, const GdnChunks& chunks, void* stream) {
  const auto scan = [&](auto pairs) {
    constexpr bool kPairs = decltype(pairs)::value;
    a.dk == 64 ? launch_scan<64, kPairs>(a, chunks, stream) : launch_scan<128, kPairs>(a, chunks, stream);
  };
  chunks.pairs ? scan(std::true_type{}) : scan(std::false_type{});
}

void gdn_chunked(const GdnRecurrent& a, GdnChunks chunks, void* stream) {
  const bool alone = a.sequences == 1;
  chunks.least = alone ? 1 : kGdnShort + 1;
  gdn_chunk_prepare(a, chunks, stream);
  gdn_chunk_scan(a, chunks, stream);
  if (alone) return;
  GdnRecurrent rest = a;
  rest.longest = kGdnShort;
  gdn_four_rows(rest, stream);
}

}  // namespace mettle::cuda
