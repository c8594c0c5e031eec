// A block of 256 threads and a whole value head of gdn, one row: convolution with its history, L2 norms, gates, delta
// rule, gated norm; the state stands in registers. Who calls brings the state and the history there.
#pragma once
#include "ops/cuda/device/gdn_vectors.cuh"
#include "ops/cuda/gdn_recurrent.h"

namespace mettle::cuda {

inline constexpr int kGdnHeadThreads = 256;

// Thread `tid` holds columns 4 lane .. 4 lane + 3 of kRows rows of the state, from row group * kRows on; of the
// channels it convolves number tid, tid + 256, ... of q, k and v of the head.
template <int DK, int DV>
struct GdnHead {
  static constexpr int kLanes = DV / 4, kGroups = kGdnHeadThreads / kLanes, kRows = DK / kGroups;
  static constexpr int kChannels = 2 * DK + DV;  // of a head: q, k, v
  static constexpr int kSlots = (kChannels + kGdnHeadThreads - 1) / kGdnHeadThreads;
  static_assert(kRows % 4 == 0 && 2 * DK <= kGdnHeadThreads && kLanes <= 32);

  struct Memory {
    alignas(16) float after[kChannels];  // silu of the convolution
    float4 sums_k[kGroups][kLanes], sums_q[kGroups][kLanes];
    float squares[2 * DK / 32], dots[kGroups];
    int last;  // the block may write the history of q and k
  };
  // Of one row: the three inputs before it of each channel, oldest first, and its own; b, a and z.
  struct Row {
    float past[kSlots][3], input[kSlots];
    float b, alpha;
    float4 z;  // of threads with group 0
  };

  int tid, lane, group, head, key, all_channels;
  int channel[kSlots];  // -1: none
  float4 tap[kSlots], weight;
  float rate, bias;

  __device__ __forceinline__ GdnHead(const GdnRecurrent& a, int of)
      : tid(static_cast<int>(threadIdx.x)), lane(tid % kLanes), group(tid / kLanes), head(of) {
    const int keys = a.key_heads * DK;
    key = head / (a.value_heads / a.key_heads);
    all_channels = 2 * keys + a.value_heads * DV;
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      const int i = tid + j * kGdnHeadThreads;
      channel[j] = i < DK          ? key * DK + i
                   : i < 2 * DK    ? keys + key * DK + i - DK
                   : i < kChannels ? 2 * keys + head * DV + i - 2 * DK
                                   : -1;
      if (channel[j] >= 0) tap[j] = reinterpret_cast<const float4*>(a.taps)[channel[j]];
    }
    rate = a.a_log[head], bias = a.dt_bias[head];
    weight = group == 0 ? reinterpret_cast<const float4*>(a.norm)[lane] : make_float4(0, 0, 0, 0);
  }

  // The thread's part of the state in a slot; its m-th row lies m * DV further.
  __device__ __forceinline__ float* state_of(const GdnRecurrent& a, int slot) const {
    return a.state + (int64_t{slot} * a.value_heads + head) * DK * DV + group * kRows * DV + 4 * lane;
  }
  __device__ __forceinline__ float* history_of(const GdnRecurrent& a, int slot, int j) const {
    return a.conv_state + (int64_t{slot} * all_channels + channel[j]) * 3;
  }
  __device__ __forceinline__ uint16_t* core_of(const GdnRecurrent& a, int64_t row) const {
    return a.core + (row * a.value_heads + head) * DV;
  }
  // What the projections left.
  __device__ __forceinline__ void load_projected(const GdnRecurrent& a, int64_t row, Row& r) const {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) r.input[j] = channel[j] < 0 ? 0.f : a.qkv[row * all_channels + channel[j]];
    const float* ba = a.ba + row * 2 * a.value_heads + head;
    r.b = ba[0], r.alpha = ba[a.value_heads];
    r.z = make_float4(0, 0, 0, 0);
    if (group == 0) r.z = *reinterpret_cast<const float4*>(a.z + (row * a.value_heads + head) * DV + 4 * lane);
  }

  // From the convolution to core, the new state and the new history. S^T k and S^T q are summed in one pass over the
  // old state: o = decay S^T q + (k . q) u. q and k stay as the convolution left them; what their norms scale is scaled
  // afterwards. `index`: of the sequence. Ends behind a barrier after which of the memory only `last` is read.
  __device__ __forceinline__ void take(const GdnRecurrent& a, Memory& memory, int index, const DeviceSequence& s,
                                       const float4 (&state)[kRows], const Row& r) const {
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      if (channel[j] < 0) continue;  // of whole warps, as are q, k and v
      const int i = tid + j * kGdnHeadThreads;
      float sum = tap[j].x * r.past[j][0];
      sum = fmaf(tap[j].y, r.past[j][1], sum);
      sum = fmaf(tap[j].z, r.past[j][2], sum);
      sum = silu(fmaf(tap[j].w, r.input[j], sum));
      memory.after[i] = sum;
      if (i >= 2 * DK) continue;
      sum = warp_sum(sum * sum);
      if (tid % 32 == 0) memory.squares[i / 32] = sum;
    }
    __syncthreads();

    // The value heads of a key head share the history of q and k: whoever is the last to have read it writes it. No
    // fence: what this block read has gone into `after`, so it cannot see a later write.
    const int heads_per_key = a.value_heads / a.key_heads;
    int before = heads_per_key - 1;
    if (tid == 0 && heads_per_key > 1) before = atomicAdd(a.tickets + int64_t{index} * a.key_heads + key, 1);
    const float *q = memory.after + group * kRows, *k = q + DK;
    float4 sk = make_float4(0, 0, 0, 0), sq = sk;
    float kq = 0;
    const auto add = [&](float key_value, float query, const float4& line) {
      sk.x = fmaf(line.x, key_value, sk.x), sq.x = fmaf(line.x, query, sq.x);
      sk.y = fmaf(line.y, key_value, sk.y), sq.y = fmaf(line.y, query, sq.y);
      sk.z = fmaf(line.z, key_value, sk.z), sq.z = fmaf(line.z, query, sq.z);
      sk.w = fmaf(line.w, key_value, sk.w), sq.w = fmaf(line.w, query, sq.w);
      kq = fmaf(key_value, query, kq);
    };
#pragma unroll
    for (int m = 0; m < kRows; m += 4) {
      const float4 x = *reinterpret_cast<const float4*>(k + m), y = *reinterpret_cast<const float4*>(q + m);
      add(x.x, y.x, state[m]), add(x.y, y.y, state[m + 1]);
      add(x.z, y.z, state[m + 2]), add(x.w, y.w, state[m + 3]);
    }
    memory.sums_k[group][lane] = sk, memory.sums_q[group][lane] = sq;
    if (lane == 0) memory.dots[group] = kq;
    float q_squares = 0, k_squares = 0;
#pragma unroll
    for (int w = 0; w < DK / 32; ++w) q_squares += memory.squares[w], k_squares += memory.squares[DK / 32 + w];
    const float q_scale = 1.f / sqrtf(q_squares + 1e-6f) * a.q_scale, k_scale = 1.f / sqrtf(k_squares + 1e-6f);
    const float beta = sigmoid(r.b), decay = expf(-(expf(rate) * softplus(r.alpha + bias)));
    __syncthreads();

    const auto total = [&](const float4(&part)[kGroups][kLanes], float scale) {
      float4 sum = part[0][lane];
#pragma unroll
      for (int g = 1; g < kGroups; ++g) {
        const float4 p = part[g][lane];
        sum.x += p.x, sum.y += p.y, sum.z += p.z, sum.w += p.w;
      }
      return make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
    };
    sk = total(memory.sums_k, k_scale);
    const float4 v = *reinterpret_cast<const float4*>(memory.after + 2 * DK + 4 * lane);
    float4 u = make_float4(beta * (v.x - decay * sk.x), beta * (v.y - decay * sk.y), beta * (v.z - decay * sk.z),
                           beta * (v.w - decay * sk.w));
    if (group == 0) {
      sq = total(memory.sums_q, q_scale);
      kq = memory.dots[0];
#pragma unroll
      for (int g = 1; g < kGroups; ++g) kq += memory.dots[g];
      kq *= k_scale * q_scale;
      const float4 o = make_float4(fmaf(kq, u.x, decay * sq.x), fmaf(kq, u.y, decay * sq.y),
                                   fmaf(kq, u.z, decay * sq.z), fmaf(kq, u.w, decay * sq.w));
      float sum = o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w;
      constexpr unsigned kLeaders = kLanes == 32 ? kAllLanes : (1u << kLanes) - 1;
#pragma unroll
      for (int d = kLanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kLeaders, sum, d);
      store_core(core_of(a, s.first_row) + 4 * lane, o, 1.f / sqrtf(sum / static_cast<float>(DV) + a.eps), weight, r.z);
    }
    const bool kept = s.state_out >= 0;
    if (kept) {
      u = make_float4(u.x * k_scale, u.y * k_scale, u.z * k_scale, u.w * k_scale);
      float* to = state_of(a, s.state_out);
      const auto write = [&](int m, float key_value) {
        *reinterpret_cast<float4*>(to + m * DV) =
            make_float4(fmaf(key_value, u.x, decay * state[m].x), fmaf(key_value, u.y, decay * state[m].y),
                        fmaf(key_value, u.z, decay * state[m].z), fmaf(key_value, u.w, decay * state[m].w));
      };
#pragma unroll
      for (int m = 0; m < kRows; m += 4) {
        const float4 x = *reinterpret_cast<const float4*>(k + m);
        write(m, x.x), write(m + 1, x.y), write(m + 2, x.z), write(m + 3, x.w);
      }
    }
    if (tid == 0) memory.last = before == heads_per_key - 1 ? 1 : 0;  // not asked for earlier: an atomic takes its time
    __syncthreads();
    if (!kept) return;
#pragma unroll
    for (int j = 0; j < kSlots; ++j) {
      if (channel[j] < 0 || (tid + j * kGdnHeadThreads < 2 * DK && memory.last == 0)) continue;
      float* history = history_of(a, s.state_out, j);
      history[0] = r.past[j][1], history[1] = r.past[j][2], history[2] = r.input[j];
    }
  }
};

}  // namespace mettle::cuda
