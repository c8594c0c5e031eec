#include "ops/cuda/gdn_recurrent.h"

#include "ops/cuda/device/gdn_conv.cuh"
#include "ops/cuda/device/gdn_history.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/product.h"

namespace mettle::cuda {
namespace {

constexpr int kGroup = 128;         // threads that share 32 columns
constexpr int kWholeColumns = 128;  // widest value head that one block holds

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

// Sums over the sixteen row groups of a group of 128 threads: partials of its four warps, by parity of the row.
struct Shared {
  float4 k[2][4][8], q[2][4][8];
  float kq[2][4];
  float squares[2];
};

__device__ __forceinline__ float4 add_groups(float4 x) {
#pragma unroll
  for (int d = 8; d < 32; d *= 2) {
    x.x += __shfl_xor_sync(kAllLanes, x.x, d);
    x.y += __shfl_xor_sync(kAllLanes, x.y, d);
    x.z += __shfl_xor_sync(kAllLanes, x.z, d);
    x.w += __shfl_xor_sync(kAllLanes, x.w, d);
  }
  return x;
}
__device__ __forceinline__ float4 add_warps(const float4 (&part)[4][8], int c) {
  float4 sum = part[0][c];
#pragma unroll
  for (int w = 1; w < 4; ++w) {
    const float4 v = part[w][c];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  return sum;
}

__device__ __forceinline__ void store_core(uint16_t* to, const float4& o, float scale, const float4& weight,
                                           const float4& z) {
  ushort4 out;
  out.x = to_bf16(o.x * scale * weight.x * silu(z.x));
  out.y = to_bf16(o.y * scale * weight.y * silu(z.y));
  out.z = to_bf16(o.z * scale * weight.z * silu(z.z));
  out.w = to_bf16(o.w * scale * weight.w * silu(z.w));
  *reinterpret_cast<ushort4*>(to) = out;
}

// The rows of one sequence and value head, one after the other. A thread holds columns `column..+3` of state rows
// first .. first + DK/16 - 1. S^T k and S^T q are summed in one pass over the old state: o = decay S^T q + (k . q) u.
// WHOLE: blockIdx.x value head, blockIdx.y sequence; the block holds all columns and finishes the row with norm and
// gate. Otherwise blockIdx.x 32 columns, blockIdx.y value head, blockIdx.z sequence; `read` takes o.
template <int DK, bool WHOLE>
__global__ __launch_bounds__(WHOLE ? kWholeColumns * 4 : kGroup,
                             WHOLE ? 2 : 4) void gdn_recurrent_kernel(GdnRecurrent a) {
  constexpr int kRows = DK / 16;
  __shared__ Shared shared[WHOLE ? kWholeColumns / kGdnColumns : 1];
  const int tid = static_cast<int>(threadIdx.x), warp = tid % kGroup / 32, lane = tid % 32, c = lane % 8;
  const int group = tid / kGroup, part = WHOLE ? group : static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(WHOLE ? blockIdx.x : blockIdx.y);
  const int column = part * kGdnColumns + 4 * c, first = (warp * 4 + lane / 8) * kRows;
  const bool leader = warp == 0 && lane < 8;  // of its four columns
  ptx::trigger();
  const DeviceSequence s = a.sequence[WHOLE ? blockIdx.y : blockIdx.z];
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
  const float4 weight = WHOLE && leader ? *reinterpret_cast<const float4*>(a.norm + column) : make_float4(0, 0, 0, 0);
  ptx::wait();
  if (s.q_len == 0) return;
  RowInput<DK> next;  // decode: nothing to fetch ahead, and the registers let a second block in
  if (!WHOLE) next.load(a, s.first_row, channels, head, first, column);

  const int parts = a.dv / kGdnColumns, rank = WHOLE ? tid : part * kGroup + tid;
  GdnHeadHistory history;
  history.load(a, s, head, rank, channels);

  Shared& mine = shared[WHOLE ? group : 0];
  for (int r = 0; r < s.q_len; ++r) {
    const int row = s.first_row + r, parity = r & 1;
    if (WHOLE) next.load(a, row, channels, head, first, column);
    const RowInput<DK> now = next;
    if (!WHOLE && r + 1 < s.q_len) next.load(a, row + 1, channels, head, first, column);
    float4 z;
    if (WHOLE && leader) z = *reinterpret_cast<const float4*>(a.z + int64_t{row} * values + head * a.dv + column);
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
    if (lane < 8) mine.k[parity][warp][c] = sk, mine.q[parity][warp][c] = sq;
    if (lane == 0) mine.kq[parity][warp] = kq;
    __syncthreads();
    sk = add_warps(mine.k[parity], c);
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
    float4 o = make_float4(0, 0, 0, 0);
    if (leader) {
      sq = add_warps(mine.q[parity], c);
      kq = mine.kq[parity][0] + mine.kq[parity][1] + mine.kq[parity][2] + mine.kq[parity][3];
      o = make_float4(fmaf(kq, u.x, decay * sq.x), fmaf(kq, u.y, decay * sq.y), fmaf(kq, u.z, decay * sq.z),
                      fmaf(kq, u.w, decay * sq.w));
      if (!WHOLE) *reinterpret_cast<float4*>(a.read + int64_t{row} * values + head * a.dv + column) = o;
    }
    if constexpr (WHOLE) {
      if (leader) {
        float squares = o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w;
#pragma unroll
        for (int d = 1; d < 8; d *= 2) squares += __shfl_xor_sync(0xffu, squares, d);
        if (lane == 0) mine.squares[parity] = squares;
      }
      __syncthreads();
      if (leader) {
        float squares = 0;
        for (int p = 0; p < parts; ++p) squares += shared[p].squares[parity];
        store_core(a.core + int64_t{row} * values + head * a.dv + column, o,
                   1.f / sqrtf(squares / static_cast<float>(a.dv) + a.eps), weight, z);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kRows; ++m)
    *reinterpret_cast<float4*>(a.state + s.state_out * slot + at + int64_t{m} * a.dv) = state[m];
  history.finish(a, s, head, rank, parts * kGroup, channels);
}

// norm(o) * w * silu(z): a warp per row and value head.
__global__ __launch_bounds__(256) void gdn_norm_kernel(GdnRecurrent a) {
  const int64_t item = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  ptx::trigger();
  ptx::wait();
  if (item >= int64_t{a.rows} * a.value_heads || a.row_sequence[item / a.value_heads] < 0) return;
  float4 o[2];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane * 4 + 128 * j;
    o[j] = i < a.dv ? *reinterpret_cast<const float4*>(a.read + item * a.dv + i) : make_float4(0, 0, 0, 0);
    squares += o[j].x * o[j].x + o[j].y * o[j].y + o[j].z * o[j].z + o[j].w * o[j].w;
  }
  const float scale = 1.f / sqrtf(warp_sum(squares) / static_cast<float>(a.dv) + a.eps);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int i = lane * 4 + 128 * j;
    if (i < a.dv)
      store_core(a.core + item * a.dv + i, o[j], scale, *reinterpret_cast<const float4*>(a.norm + i),
                 *reinterpret_cast<const float4*>(a.z + item * a.dv + i));
  }
}

template <int DK>
void recur(const GdnRecurrent& a, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(a.value_heads), sequences = static_cast<unsigned>(a.sequences);
  const auto parts = static_cast<unsigned>(a.dv / kGdnColumns);
  if (a.most_q == 1 && a.dv <= kWholeColumns) {
    launch({.grid = dim3(heads, sequences), .block = dim3(parts * kGroup), .stream = stream},
           gdn_recurrent_kernel<DK, true>, a);
    return;
  }
  if (a.four_rows)
    gdn_four_rows(a, stream);
  else
    launch({.grid = dim3(parts, heads, sequences), .block = dim3(kGroup), .stream = stream},
           gdn_recurrent_kernel<DK, false>, a);
  const int64_t blocks = (int64_t{a.rows} * a.value_heads + 7) / 8;
  launch({.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(256), .stream = stream}, gdn_norm_kernel, a);
}

}  // namespace

void gdn_recurrent(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, float* partial, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  gdn_project(a, weights, x, stream);
  const int units = gdn_conv_units(a);
  launch(
      {.grid = dim3(static_cast<unsigned>(a.rows), static_cast<unsigned>((units + kGdnConvWarps - 1) / kGdnConvWarps)),
       .block = dim3(kGdnConvWarps * 32),
       .stream = on},
      gdn_conv_kernel, a, units);
  a.dk == 64 ? recur<64>(a, on) : recur<128>(a, on);
  product(weights.out, a.core, a.rows, partial, on);
}

}  // namespace mettle::cuda
