// The delta rule row by row, for sequences of any length; `read` takes o.
#include "ops/cuda/device/gdn_history.cuh"
#include "ops/cuda/device/gdn_vectors.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

// What one row needs of the step's vectors; a thread holds DK / 16 of the dk rows of the state and four columns.
template <int DK>
struct RowInput {
  static constexpr int kRows = DK / 16;
  float q[kRows], k[kRows];
  float4 v;
  float2 gate;  // beta, decay

  __device__ __forceinline__ void load(const GdnRecurrent& a, int row, int channels, int head, int first, int column) {
    const int key_head = head / (a.value_heads / a.key_heads);
    const float* at = a.conv + int64_t{row} * channels;
    const float* keys = at + key_head * DK + first;
#pragma unroll
    for (int m = 0; m < kRows; m += 4) {
      const float4 x = *reinterpret_cast<const float4*>(keys + m);
      const float4 y = *reinterpret_cast<const float4*>(keys + a.key_heads * DK + m);
      q[m] = x.x, q[m + 1] = x.y, q[m + 2] = x.z, q[m + 3] = x.w;
      k[m] = y.x, k[m + 1] = y.y, k[m + 2] = y.z, k[m + 3] = y.w;
    }
    v = *reinterpret_cast<const float4*>(at + 2 * a.key_heads * DK + head * a.dv + column);
    gate = reinterpret_cast<const float2*>(a.gates)[int64_t{row} * a.value_heads + head];
  }
};

// The rows of one sequence and value head, one after the other. A thread holds columns `column..+3` of state rows
// first .. first + DK/16 - 1. S^T k and S^T q are summed in one pass over the old state: o = decay S^T q + (k . q) u.
// blockIdx: 32 columns, value head, sequence.
template <int DK>
__global__ __launch_bounds__(kGdnGroup, 4) void gdn_one_row_kernel(GdnRecurrent a) {
  constexpr int kRows = DK / 16;
  __shared__ float4 sums_k[2][4][8], sums_q[2][4][8];  // by parity of the row, of the four warps
  __shared__ float dots[2][4];
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, c = lane % 8;
  const int part = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int column = part * kGdnColumns + 4 * c, first = (warp * 4 + lane / 8) * kRows;
  ptx::trigger();
  const DeviceSequence s = a.sequence[blockIdx.z];
  const int channels = 2 * a.key_heads * DK + a.value_heads * a.dv, values = a.value_heads * a.dv;
  const int64_t at = (int64_t{head} * DK + first) * a.dv + column, slot = int64_t{a.value_heads} * DK * a.dv;
  // The state is read before the wait for this step's kernels: the kernel that wrote it belongs to the step before, and
  // between two steps lie the copies of the next one's batch, which no kernel overtakes.
  float4 state[kRows];
#pragma unroll
  for (int m = 0; m < kRows; ++m)
    state[m] = s.q_len == 0 || s.state_in < 0
                   ? make_float4(0, 0, 0, 0)
                   : *reinterpret_cast<const float4*>(a.state + s.state_in * slot + at + int64_t{m} * a.dv);
  ptx::wait();
  if (s.q_len == 0) return;
  RowInput<DK> next;
  next.load(a, s.first_row, channels, head, first, column);

  const int parts = a.dv / kGdnColumns, rank = part * kGdnGroup + tid;
  GdnHeadHistory history;
  history.load(a, s, head, rank, channels);

  for (int r = 0; r < s.q_len; ++r) {
    const int row = s.first_row + r, parity = r & 1;
    const RowInput<DK> now = next;
    if (r + 1 < s.q_len) next.load(a, row + 1, channels, head, first, column);
    float4 sk = make_float4(0, 0, 0, 0), sq = sk;
    float kq = 0;
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      sk.x = fmaf(state[m].x, now.k[m], sk.x), sq.x = fmaf(state[m].x, now.q[m], sq.x);
      sk.y = fmaf(state[m].y, now.k[m], sk.y), sq.y = fmaf(state[m].y, now.q[m], sq.y);
      sk.z = fmaf(state[m].z, now.k[m], sk.z), sq.z = fmaf(state[m].z, now.q[m], sq.z);
      sk.w = fmaf(state[m].w, now.k[m], sk.w), sq.w = fmaf(state[m].w, now.q[m], sq.w);
      kq = fmaf(now.k[m], now.q[m], kq);
    }
    sk = add_groups(sk), sq = add_groups(sq);
    kq += __shfl_xor_sync(kAllLanes, kq, 8);
    kq += __shfl_xor_sync(kAllLanes, kq, 16);
    if (lane < 8) sums_k[parity][warp][c] = sk, sums_q[parity][warp][c] = sq;
    if (lane == 0) dots[parity][warp] = kq;
    __syncthreads();
    sk = add_warps(sums_k[parity], c);
    const float beta = now.gate.x, decay = now.gate.y;
    const float4 u = make_float4(beta * (now.v.x - decay * sk.x), beta * (now.v.y - decay * sk.y),
                                 beta * (now.v.z - decay * sk.z), beta * (now.v.w - decay * sk.w));
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      state[m].x = fmaf(now.k[m], u.x, decay * state[m].x);
      state[m].y = fmaf(now.k[m], u.y, decay * state[m].y);
      state[m].z = fmaf(now.k[m], u.z, decay * state[m].z);
      state[m].w = fmaf(now.k[m], u.w, decay * state[m].w);
    }
    if (warp == 0 && lane < 8) {
      sq = add_warps(sums_q[parity], c);
      kq = dots[parity][0] + dots[parity][1] + dots[parity][2] + dots[parity][3];
      *reinterpret_cast<float4*>(a.read + int64_t{row} * values + head * a.dv + column) =
          make_float4(fmaf(kq, u.x, decay * sq.x), fmaf(kq, u.y, decay * sq.y), fmaf(kq, u.z, decay * sq.z),
                      fmaf(kq, u.w, decay * sq.w));
    }
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m)
    *reinterpret_cast<float4*>(a.state + s.state_out * slot + at + int64_t{m} * a.dv) = state[m];
  history.finish(a, s, head, rank, parts * kGdnGroup, channels);
}

}  // namespace

void gdn_one_row(const GdnRecurrent& a, void* stream) {
  const Launch l{.grid = dim3(static_cast<unsigned>(a.dv / kGdnColumns), static_cast<unsigned>(a.value_heads),
                              static_cast<unsigned>(a.sequences)),
                 .block = dim3(kGdnGroup),
                 .stream = static_cast<cudaStream_t>(stream)};
  a.dk == 64 ? launch(l, gdn_one_row_kernel<64>, a) : launch(l, gdn_one_row_kernel<128>, a);
}

}  // namespace mettle::cuda
