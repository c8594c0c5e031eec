// The delta rule, four rows at a time. With the state S before the four, d the decays and u_i = beta_i (v_i - S_i^T
// k_i):
//   S_i^T k_i = d_i (... d_1 (d_0 S^T k_i + (k_i . k_0) u_0) + (k_i . k_1) u_1 ...),   o_i likewise with q_i,
// so one pass over the state gives S^T k and S^T q of all four, one reduction sums them, and one pass writes all four:
// a quarter of the barriers of the row by row form, and the same float32 sums.
#include "ops/cuda/device/float_math.cuh"
#include "ops/cuda/device/gdn_history.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kThreads = 128, kFour = 4;

struct Pair {
  int later, earlier;
};
// The sixteen dot products of four rows: k_later . k_earlier (6), then q_later . k_earlier, itself included (10).
__device__ __forceinline__ Pair pair_of(int d) {
  if (d < 6) {
    const int later = d == 0 ? 1 : d < 3 ? 2 : 3;
    return {later, d - later * (later - 1) / 2};
  }
  const int e = d - 6, later = e == 0 ? 0 : e < 3 ? 1 : e < 6 ? 2 : 3;
  return {later, e - later * (later + 1) / 2};
}
__device__ __forceinline__ constexpr int key_dot(int later, int earlier) { return later * (later - 1) / 2 + earlier; }
__device__ __forceinline__ constexpr int query_dot(int later, int earlier) {
  return 6 + later * (later + 1) / 2 + earlier;
}

template <int DK>
struct Inputs {  // of four rows
  float q[kFour][DK], k[kFour][DK], v[kFour][kGdnColumns];
};
template <int DK>
struct Shared {
  Inputs<DK> in[2];
  float4 sums[kThreads / 32][2 * kFour][8];  // [warp][S^T k of the rows, then S^T q][four columns]
  float dots[16];
};

__device__ __forceinline__ float4 fma4(float x, const float4& y, const float4& z) {
  return make_float4(fmaf(x, y.x, z.x), fmaf(x, y.y, z.y), fmaf(x, y.z, z.z), fmaf(x, y.w, z.w));
}
__device__ __forceinline__ float4 scale4(float x, const float4& y) {
  return make_float4(x * y.x, x * y.y, x * y.z, x * y.w);
}
__device__ __forceinline__ float4 exchange_add(const float4& keep, const float4& send, int distance) {
  return make_float4(
      keep.x + __shfl_xor_sync(kAllLanes, send.x, distance), keep.y + __shfl_xor_sync(kAllLanes, send.y, distance),
      keep.z + __shfl_xor_sync(kAllLanes, send.z, distance), keep.w + __shfl_xor_sync(kAllLanes, send.w, distance));
}
__device__ __forceinline__ float4 choose(bool second, const float4& a, const float4& b) {
  return make_float4(second ? b.x : a.x, second ? b.y : a.y, second ? b.z : a.z, second ? b.w : a.w);
}

// Rows first .. first + 3 of the sequence on their way to shared memory; those beyond its end are zeros.
template <int DK>
__device__ __forceinline__ void fetch(const GdnRecurrent& a, const DeviceSequence& s, Inputs<DK>& to, int channels,
                                      int head, int part, int first) {
  constexpr int kPieces = (2 * DK + kGdnColumns) / 4;  // of 16 bytes, a row
  const int key_head = head / (a.value_heads / a.key_heads);
  for (int i = static_cast<int>(threadIdx.x); i < kFour * kPieces; i += kThreads) {
    const int r = i / kPieces, at = i % kPieces * 4;
    const bool ok = first + r < s.q_len;
    const float* from = a.conv + int64_t{s.first_row + (ok ? first + r : 0)} * channels;
    float* into;
    if (at < DK) {
      from += key_head * DK + at, into = &to.q[r][at];
    } else if (at < 2 * DK) {
      from += a.key_heads * DK + key_head * DK + at - DK, into = &to.k[r][at - DK];
    } else {
      from += 2 * a.key_heads * DK + head * a.dv + part * kGdnColumns + at - 2 * DK, into = &to.v[r][at - 2 * DK];
    }
    ptx::copy_async_16(into, from, ok);
  }
  ptx::copy_async_commit();
}

// blockIdx: 32 columns, value head, sequence. A thread holds four columns of state rows first .. first + DK/16 - 1.
template <int DK>
__global__ __launch_bounds__(kThreads, 3) void gdn_four_rows_kernel(GdnRecurrent a) {
  constexpr int kRows = DK / 16;
  __shared__ Shared<DK> shared;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, c = lane % 8;
  const int part = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int column = part * kGdnColumns + 4 * c, first = (warp * 4 + lane / 8) * kRows;
  ptx::trigger();
  ptx::wait();
  const DeviceSequence s = a.sequence[blockIdx.z];
  if (s.q_len == 0 || s.q_len > a.longest) return;
  const int channels = 2 * a.key_heads * DK + a.value_heads * a.dv;
  fetch<DK>(a, s, shared.in[0], channels, head, part, 0);
  const int64_t at = (int64_t{head} * DK + first) * a.dv + column, slot = int64_t{a.value_heads} * DK * a.dv;
  float4 state[kRows];
#pragma unroll
  for (int m = 0; m < kRows; ++m)
    state[m] = s.state_in < 0 ? make_float4(0, 0, 0, 0)
                              : *reinterpret_cast<const float4*>(a.state + s.state_in * slot + at + int64_t{m} * a.dv);
  const int rank = part * kThreads + tid, threads = a.dv / kGdnColumns * kThreads;
  GdnHeadHistory history;
  history.load(a, s, head, rank, channels);

  const Pair pair = pair_of(tid / 8);
  for (int begin = 0, buffer = 0; begin < s.q_len; begin += kFour, buffer ^= 1) {
    float beta[kFour], decay[kFour];
#pragma unroll
    for (int r = 0; r < kFour; ++r) {
      float2 gate = make_float2(0, 1);  // a row that does nothing
      if (begin + r < s.q_len)
        gate = reinterpret_cast<const float2*>(a.gates)[int64_t{s.first_row + begin + r} * a.value_heads + head];
      beta[r] = gate.x, decay[r] = gate.y;
    }
    ptx::copy_async_wait<0>();
    __syncthreads();  // these rows are there for all, and the other buffer and the sums are read by all
    if (begin + kFour < s.q_len) fetch<DK>(a, s, shared.in[buffer ^ 1], channels, head, part, begin + kFour);
    const Inputs<DK>& in = shared.in[buffer];

    float4 sums[2 * kFour] = {};
#pragma unroll
    for (int r = 0; r < kFour; ++r)
#pragma unroll
      for (int m = 0; m < kRows; m += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&in.k[r][first + m]);
        const float4 q = *reinterpret_cast<const float4*>(&in.q[r][first + m]);
        sums[r] = fma4(k.x, state[m], sums[r]), sums[kFour + r] = fma4(q.x, state[m], sums[kFour + r]);
        sums[r] = fma4(k.y, state[m + 1], sums[r]), sums[kFour + r] = fma4(q.y, state[m + 1], sums[kFour + r]);
        sums[r] = fma4(k.z, state[m + 2], sums[r]), sums[kFour + r] = fma4(q.z, state[m + 2], sums[kFour + r]);
        sums[r] = fma4(k.w, state[m + 3], sums[r]), sums[kFour + r] = fma4(q.w, state[m + 3], sums[kFour + r]);
      }
    float dot = 0;
    const float* later = tid / 8 < 6 ? in.k[pair.later] : in.q[pair.later];
#pragma unroll
    for (int m = 0; m < DK; m += 32) {
      const float4 x = *reinterpret_cast<const float4*>(later + m + 4 * c);
      const float4 y = *reinterpret_cast<const float4*>(&in.k[pair.earlier][m + 4 * c]);
      dot = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, dot))));
    }
#pragma unroll
    for (int d = 1; d < 8; d *= 2) dot += __shfl_xor_sync(kAllLanes, dot, d);
    if (c == 0) shared.dots[tid / 8] = dot;

    // The four row groups of a warp: each ends with the sums of two of the eight vectors.
    float4 four[kFour], two[2];
    const bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
#pragma unroll
    for (int i = 0; i < kFour; ++i)
      four[i] = exchange_add(choose(upper, sums[i], sums[kFour + i]), choose(upper, sums[kFour + i], sums[i]), 16);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      two[i] = exchange_add(choose(odd, four[i], four[2 + i]), choose(odd, four[2 + i], four[i]), 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) shared.sums[warp][lane / 8 * 2 + i][c] = two[i];
    __syncthreads();

    const auto total = [&](int vector) {
      float4 sum = shared.sums[0][vector][c];
#pragma unroll
      for (int w = 1; w < kThreads / 32; ++w) sum = fma4(1.f, shared.sums[w][vector][c], sum);
      return sum;
    };
    float4 u[kFour];
#pragma unroll
    for (int r = 0; r < kFour; ++r) {
      float4 read = total(r);
#pragma unroll
      for (int j = 0; j < r; ++j) read = fma4(shared.dots[key_dot(r, j)], u[j], scale4(decay[j], read));
      const float4 v = *reinterpret_cast<const float4*>(&in.v[r][4 * c]);
      u[r] = scale4(beta[r], fma4(-decay[r], read, v));
    }
    // Outputs: warp r takes those of row r.
#pragma unroll
    for (int r = 0; r < kFour; ++r) {
      if (warp != r || lane >= 8 || begin + r >= s.q_len) continue;
      float4 o = total(kFour + r);
#pragma unroll
      for (int j = 0; j < r; ++j) o = fma4(shared.dots[query_dot(r, j)], u[j], scale4(decay[j], o));
      o = fma4(shared.dots[query_dot(r, r)], u[r], scale4(decay[r], o));
      const int64_t row = s.first_row + begin + r;
      *reinterpret_cast<float4*>(a.read + (row * a.value_heads + head) * a.dv + column) = o;
    }
    const float after2 = decay[3], after1 = decay[2] * after2, after0 = decay[1] * after1, all = decay[0] * after0;
    u[0] = scale4(after0, u[0]), u[1] = scale4(after1, u[1]), u[2] = scale4(after2, u[2]);
#pragma unroll
    for (int m = 0; m < kRows; ++m) state[m] = scale4(all, state[m]);
#pragma unroll
    for (int r = 0; r < kFour; ++r)
#pragma unroll
      for (int m = 0; m < kRows; m += 4) {
        const float4 k = *reinterpret_cast<const float4*>(&in.k[r][first + m]);
        state[m] = fma4(k.x, u[r], state[m]), state[m + 1] = fma4(k.y, u[r], state[m + 1]);
        state[m + 2] = fma4(k.z, u[r], state[m + 2]), state[m + 3] = fma4(k.w, u[r], state[m + 3]);
      }
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m)
    *reinterpret_cast<float4*>(a.state + s.state_out * slot + at + int64_t{m} * a.dv) = state[m];
  history.finish(a, s, head, rank, threads, channels);
}

}  // namespace

void gdn_four_rows(const GdnRecurrent& a, void* stream) {
  const Launch l{.grid = dim3(static_cast<unsigned>(a.dv / kGdnColumns), static_cast<unsigned>(a.value_heads),
                              static_cast<unsigned>(a.sequences)),
                 .block = dim3(kThreads),
                 .stream = static_cast<cudaStream_t>(stream)};
  a.dk == 64 ? launch(l, gdn_four_rows_kernel<64>, a) : launch(l, gdn_four_rows_kernel<128>, a);
}

}  // namespace mettle::cuda
