// The delta rule for one row of every sequence, with norm and gate: a block owns a whole value head, its state in
// registers. Nearly all of the time goes into reading and writing the state once.
#include "ops/cuda/device/gdn_history.cuh"
#include "ops/cuda/device/gdn_vectors.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kMostGroups = kGdnDecodeColumns / kGdnColumns;

// blockIdx: value head, sequence. S^T k and S^T q are summed in one pass over the old state:
// o = decay S^T q + (k . q) u.
template <int DK>
__global__ __launch_bounds__(kMostGroups* kGdnGroup, 2) void gdn_decode_kernel(GdnRecurrent a) {
  constexpr int kRows = DK / 16;
  __shared__ alignas(16) float q[DK], k[DK], v[kGdnDecodeColumns];
  __shared__ float4 sums_k[kMostGroups][4][8], sums_q[kMostGroups][4][8];
  __shared__ float dots[4], squares[kMostGroups];
  const int tid = static_cast<int>(threadIdx.x), group = tid / kGdnGroup, warp = tid % kGdnGroup / 32, lane = tid % 32,
            c = lane % 8;
  const int head = static_cast<int>(blockIdx.x), column = group * kGdnColumns + 4 * c,
            first = (warp * 4 + lane / 8) * kRows;
  const bool leader = warp == 0 && lane < 8;  // of its four columns
  ptx::trigger();
  const DeviceSequence s = a.sequence[blockIdx.y];
  const int channels = 2 * a.key_heads * DK + a.value_heads * a.dv;
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
  const float* row = a.conv + int64_t{s.first_row} * channels;
  const int key = head / (a.value_heads / a.key_heads) * DK, keys = a.key_heads * DK;
  if (tid < (2 * DK + a.dv) / 4) {
    const int i = tid * 4;
    const float* from = i < DK       ? row + key + i
                        : i < 2 * DK ? row + keys + key + i - DK
                                     : row + 2 * keys + head * a.dv + i - 2 * DK;
    float* to = i < DK ? q + i : i < 2 * DK ? k + i - DK : v + i - 2 * DK;
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
  }
  const float2 gate = reinterpret_cast<const float2*>(a.gates)[int64_t{s.first_row} * a.value_heads + head];
  const int64_t out = (int64_t{s.first_row} * a.value_heads + head) * a.dv + column;
  float4 z = make_float4(0, 0, 0, 0);
  if (leader) z = *reinterpret_cast<const float4*>(a.z + out);
  GdnHeadHistory history;
  history.load(a, s, head, tid, channels);
  __syncthreads();

  float4 sk = make_float4(0, 0, 0, 0), sq = sk;
  float kq = 0;
  const auto take = [&](float key_value, float query, const float4& line) {
    sk.x = fmaf(line.x, key_value, sk.x), sq.x = fmaf(line.x, query, sq.x);
    sk.y = fmaf(line.y, key_value, sk.y), sq.y = fmaf(line.y, query, sq.y);
    sk.z = fmaf(line.z, key_value, sk.z), sq.z = fmaf(line.z, query, sq.z);
    sk.w = fmaf(line.w, key_value, sk.w), sq.w = fmaf(line.w, query, sq.w);
    kq = fmaf(key_value, query, kq);
  };
#pragma unroll
  for (int m = 0; m < kRows; m += 4) {
    const float4 x = *reinterpret_cast<const float4*>(k + first + m),
                 y = *reinterpret_cast<const float4*>(q + first + m);
    take(x.x, y.x, state[m]), take(x.y, y.y, state[m + 1]);
    take(x.z, y.z, state[m + 2]), take(x.w, y.w, state[m + 3]);
  }
  sk = add_groups(sk), sq = add_groups(sq);
  kq += __shfl_xor_sync(kAllLanes, kq, 8);
  kq += __shfl_xor_sync(kAllLanes, kq, 16);
  if (lane < 8) sums_k[group][warp][c] = sk, sums_q[group][warp][c] = sq;
  if (group == 0 && lane == 0) dots[warp] = kq;
  __syncthreads();

  sk = add_warps(sums_k[group], c);
  const float4 value = *reinterpret_cast<const float4*>(v + column);
  const float beta = gate.x, decay = gate.y;
  const float4 u = make_float4(beta * (value.x - decay * sk.x), beta * (value.y - decay * sk.y),
                               beta * (value.z - decay * sk.z), beta * (value.w - decay * sk.w));
  float4 o = make_float4(0, 0, 0, 0);
  if (leader) {
    sq = add_warps(sums_q[group], c);
    kq = dots[0] + dots[1] + dots[2] + dots[3];
    o = make_float4(fmaf(kq, u.x, decay * sq.x), fmaf(kq, u.y, decay * sq.y), fmaf(kq, u.z, decay * sq.z),
                    fmaf(kq, u.w, decay * sq.w));
    float sum = o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w;
#pragma unroll
    for (int d = 1; d < 8; d *= 2) sum += __shfl_xor_sync(0xffu, sum, d);
    if (lane == 0) squares[group] = sum;
  }
  float* to = a.state + s.state_out * slot + at;
  const auto write = [&](int m, float key_value) {
    *reinterpret_cast<float4*>(to + int64_t{m} * a.dv) =
        make_float4(fmaf(key_value, u.x, decay * state[m].x), fmaf(key_value, u.y, decay * state[m].y),
                    fmaf(key_value, u.z, decay * state[m].z), fmaf(key_value, u.w, decay * state[m].w));
  };
#pragma unroll
  for (int m = 0; m < kRows; m += 4) {
    const float4 x = *reinterpret_cast<const float4*>(k + first + m);
    write(m, x.x), write(m + 1, x.y), write(m + 2, x.z), write(m + 3, x.w);
  }
  const int groups = a.dv / kGdnColumns;
  history.finish(a, s, head, tid, groups * kGdnGroup, channels);
  __syncthreads();
  if (!leader) return;
  float sum = 0;
  for (int p = 0; p < groups; ++p) sum += squares[p];
  store_core(a.core + out, o, 1.f / sqrtf(sum / static_cast<float>(a.dv) + a.eps),
             *reinterpret_cast<const float4*>(a.norm + column), z);
}

}  // namespace

void gdn_decode(const GdnRecurrent& a, void* stream) {
  const Launch l{.grid = dim3(static_cast<unsigned>(a.value_heads), static_cast<unsigned>(a.sequences)),
                 .block = dim3(static_cast<unsigned>(a.dv / kGdnColumns * kGdnGroup)),
                 .stream = static_cast<cudaStream_t>(stream)};
  a.dk == 64 ? launch(l, gdn_decode_kernel<64>, a) : launch(l, gdn_decode_kernel<128>, a);
}

}  // namespace mettle::cuda
