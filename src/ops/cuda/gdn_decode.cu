// One row of every sequence, from the projections to the core: convolution with its history, L2 norms, gates, delta
// rule, gated norm. A block owns a whole value head, its state in registers. Nearly all of the time goes into reading
// and writing the state once; everything else hides behind its arrival.
#include <algorithm>

#include "ops/cuda/device/gdn_vectors.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/gdn_recurrent.h"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kThreads = 256;

// A thread holds four columns of kRows rows of the state; kLanes threads side by side hold a row.
template <int DK, int DV>
struct Shape {
  static constexpr int kLanes = DV / 4, kGroups = kThreads / kLanes, kRows = DK / kGroups;
  static constexpr int kChannels = 2 * DK + DV;  // of a head: q, k, v
  static constexpr int kSlots = (kChannels + kThreads - 1) / kThreads;
  static_assert(kRows % 4 == 0 && 2 * DK <= kThreads && kLanes <= 32);
};

// blockIdx: value head; sequence, and row where that is padding. S^T k and S^T q are summed in one pass over the old
// state: o = decay S^T q + (k . q) u. q and k stay as the convolution left them; what their norms scale is scaled
// afterwards.
template <int DK, int DV>
__global__ __launch_bounds__(kThreads, 2) void gdn_decode_kernel(GdnRecurrent a) {
  using S = Shape<DK, DV>;
  __shared__ alignas(16) float after[S::kChannels];  // silu of the convolution
  __shared__ float4 sums_k[S::kGroups][S::kLanes], sums_q[S::kGroups][S::kLanes];
  __shared__ float squares[2 * DK / 32], dots[S::kGroups];
  __shared__ int last;  // the block may write the history of q and k
  const int tid = static_cast<int>(threadIdx.x), lane = tid % S::kLanes, group = tid / S::kLanes;
  const int head = static_cast<int>(blockIdx.x), index = static_cast<int>(blockIdx.y);
  const int heads_per_key = a.value_heads / a.key_heads, key = head / heads_per_key, keys = a.key_heads * DK;
  const int channels = 2 * keys + a.value_heads * DV;
  const bool leader = group == 0;
  ptx::trigger();
  // State, history and batch are read before the wait for this step's kernels: the kernels that wrote the first two
  // belong to the step before, and between two steps lie the copies of the next one's batch, which no kernel overtakes.
  const DeviceSequence s = index < a.sequences ? a.sequence[index] : DeviceSequence{};
  const bool there = s.q_len > 0, carried = there && s.state_in >= 0;
  const int64_t at = (int64_t{head} * DK + group * S::kRows) * DV + 4 * lane, slot = int64_t{a.value_heads} * DK * DV;
  float4 state[S::kRows];
#pragma unroll
  for (int m = 0; m < S::kRows; ++m)
    state[m] =
        carried ? *reinterpret_cast<const float4*>(a.state + s.state_in * slot + at + m * DV) : make_float4(0, 0, 0, 0);
  int channel[S::kSlots];
  float4 tap[S::kSlots];
  float past[S::kSlots][3];
#pragma unroll
  for (int j = 0; j < S::kSlots; ++j) {
    const int i = tid + j * kThreads;
    channel[j] = i < DK             ? key * DK + i
                 : i < 2 * DK       ? keys + key * DK + i - DK
                 : i < S::kChannels ? 2 * keys + head * DV + i - 2 * DK
                                    : -1;
    past[j][0] = past[j][1] = past[j][2] = 0;
    if (channel[j] < 0) continue;
    tap[j] = reinterpret_cast<const float4*>(a.taps)[channel[j]];
    if (!carried) continue;
    const float* history = a.conv_state + (int64_t{s.state_in} * channels + channel[j]) * 3;
    past[j][0] = history[0], past[j][1] = history[1], past[j][2] = history[2];
  }
  const float rate = a.a_log[head], bias = a.dt_bias[head];
  float4 weight = make_float4(0, 0, 0, 0), z = weight;
  if (leader) weight = reinterpret_cast<const float4*>(a.norm)[lane];
  ptx::wait();
  if (tid < DV && index < a.rows && a.row_sequence[index] < 0)
    a.core[(int64_t{index} * a.value_heads + head) * DV + tid] = 0;
  if (!there) return;

  const int64_t row = s.first_row;
  float input[S::kSlots];
#pragma unroll
  for (int j = 0; j < S::kSlots; ++j) input[j] = channel[j] < 0 ? 0.f : a.qkv[row * channels + channel[j]];
  if (a.shares == 2) {
#pragma unroll
    for (int j = 0; j < S::kSlots; ++j)
      if (channel[j] >= 0) input[j] += a.qkv[(a.rows + row) * channels + channel[j]];
  }
  const float* ba = a.ba + row * 2 * a.value_heads + head;
  const float b = ba[0], alpha = ba[a.value_heads];
  const int64_t out = (row * a.value_heads + head) * DV + 4 * lane;
  if (leader) z = *reinterpret_cast<const float4*>(a.z + out);
  if (leader && a.shares == 2) {
    const float4 second = *reinterpret_cast<const float4*>(a.z + int64_t{a.rows} * a.value_heads * DV + out);
    z.x += second.x, z.y += second.y, z.z += second.z, z.w += second.w;
  }
#pragma unroll
  for (int j = 0; j < S::kSlots; ++j) {
    if (channel[j] < 0) continue;  // of whole warps, as are q, k and v
    const int i = tid + j * kThreads;
    float sum = tap[j].x * past[j][0];
    sum = fmaf(tap[j].y, past[j][1], sum);
    sum = fmaf(tap[j].z, past[j][2], sum);
    sum = silu(fmaf(tap[j].w, input[j], sum));
    after[i] = sum;
    if (i >= 2 * DK) continue;
    sum = warp_sum(sum * sum);
    if (tid % 32 == 0) squares[i / 32] = sum;
  }
  __syncthreads();

  // The value heads of a key head share the history of q and k: whoever is the last to have read it writes it. No
  // fence: what this block read has gone into `after`, so it cannot see a later write.
  int before = heads_per_key - 1;
  if (tid == 0 && heads_per_key > 1) before = atomicAdd(a.tickets + int64_t{index} * a.key_heads + key, 1);
  const float *q = after + group * S::kRows, *k = q + DK;
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
  for (int m = 0; m < S::kRows; m += 4) {
    const float4 x = *reinterpret_cast<const float4*>(k + m), y = *reinterpret_cast<const float4*>(q + m);
    take(x.x, y.x, state[m]), take(x.y, y.y, state[m + 1]);
    take(x.z, y.z, state[m + 2]), take(x.w, y.w, state[m + 3]);
  }
  sums_k[group][lane] = sk, sums_q[group][lane] = sq;
  if (lane == 0) dots[group] = kq;
  float q_squares = 0, k_squares = 0;
#pragma unroll
  for (int w = 0; w < DK / 32; ++w) q_squares += squares[w], k_squares += squares[DK / 32 + w];
  const float q_scale = 1.f / sqrtf(q_squares + 1e-6f) * a.q_scale, k_scale = 1.f / sqrtf(k_squares + 1e-6f);
  const float beta = sigmoid(b), decay = expf(-(expf(rate) * softplus(alpha + bias)));
  __syncthreads();

  const auto total = [&](const float4(&part)[S::kGroups][S::kLanes], float scale) {
    float4 sum = part[0][lane];
#pragma unroll
    for (int g = 1; g < S::kGroups; ++g) {
      const float4 p = part[g][lane];
      sum.x += p.x, sum.y += p.y, sum.z += p.z, sum.w += p.w;
    }
    return make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
  };
  sk = total(sums_k, k_scale);
  const float4 v = *reinterpret_cast<const float4*>(after + 2 * DK + 4 * lane);
  float4 u = make_float4(beta * (v.x - decay * sk.x), beta * (v.y - decay * sk.y), beta * (v.z - decay * sk.z),
                         beta * (v.w - decay * sk.w));
  if (leader) {
    sq = total(sums_q, q_scale);
    kq = dots[0];
#pragma unroll
    for (int g = 1; g < S::kGroups; ++g) kq += dots[g];
    kq *= k_scale * q_scale;
    const float4 o = make_float4(fmaf(kq, u.x, decay * sq.x), fmaf(kq, u.y, decay * sq.y), fmaf(kq, u.z, decay * sq.z),
                                 fmaf(kq, u.w, decay * sq.w));
    float sum = o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w;
    constexpr unsigned kLeaders = S::kLanes == 32 ? kAllLanes : (1u << S::kLanes) - 1;
#pragma unroll
    for (int d = S::kLanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kLeaders, sum, d);
    store_core(a.core + out, o, 1.f / sqrtf(sum / static_cast<float>(DV) + a.eps), weight, z);
  }
  if (s.state_out < 0) return;
  u = make_float4(u.x * k_scale, u.y * k_scale, u.z * k_scale, u.w * k_scale);
  float* to = a.state + s.state_out * slot + at;
  const auto write = [&](int m, float key_value) {
    *reinterpret_cast<float4*>(to + m * DV) =
        make_float4(fmaf(key_value, u.x, decay * state[m].x), fmaf(key_value, u.y, decay * state[m].y),
                    fmaf(key_value, u.z, decay * state[m].z), fmaf(key_value, u.w, decay * state[m].w));
  };
#pragma unroll
  for (int m = 0; m < S::kRows; m += 4) {
    const float4 x = *reinterpret_cast<const float4*>(k + m);
    write(m, x.x), write(m + 1, x.y), write(m + 2, x.z), write(m + 3, x.w);
  }
  if (tid == 0) last = before == heads_per_key - 1 ? 1 : 0;  // not asked for earlier: an atomic takes its time
  __syncthreads();
#pragma unroll
  for (int j = 0; j < S::kSlots; ++j) {
    if (channel[j] < 0 || (tid + j * kThreads < 2 * DK && last == 0)) continue;
    float* history = a.conv_state + (int64_t{s.state_out} * channels + channel[j]) * 3;
    history[0] = past[j][1], history[1] = past[j][2], history[2] = input[j];
  }
}

__global__ __launch_bounds__(kThreads) void gdn_clear_kernel(int32_t* tickets, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  ptx::trigger();
  ptx::wait();
  if (i < count) tickets[i] = 0;
}

template <int DK>
void decode_of(const GdnRecurrent& a, const Launch& l) {
  a.dv == 64 ? launch(l, gdn_decode_kernel<DK, 64>, a) : launch(l, gdn_decode_kernel<DK, 128>, a);
}

}  // namespace

void gdn_decode(const GdnRecurrent& a, void* stream) {
  const Launch l{
      .grid = dim3(static_cast<unsigned>(a.value_heads), static_cast<unsigned>(std::max(a.sequences, a.rows))),
      .block = dim3(kThreads),
      .stream = static_cast<cudaStream_t>(stream)};
  a.dk == 64 ? decode_of<64>(a, l) : decode_of<128>(a, l);
}

void gdn_clear(const GdnRecurrent& a, void* stream) {
  launch({.grid = dim3(static_cast<unsigned>((gdn_tickets(a) + kThreads - 1) / kThreads)),
          .block = dim3(kThreads),
          .stream = static_cast<cudaStream_t>(stream)},
         gdn_clear_kernel, a.tickets, gdn_tickets(a));
}

}  // namespace mettle::cuda
