// As gdn_decode.cu, with blocks that stay: each has one value head of every n-th sequence. While a state is multiplied
// and written, the next one and its history come to shared memory, so reads and writes go on at the same time. A thread
// copies what it will hold itself: no barrier between a copy and its use.
#include <algorithm>

#include "ops/cuda/device/gdn_head.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/gdn_recurrent.h"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

// The next state and history, [part][thread].
template <int DK, int DV>
struct Next {
  using Head = GdnHead<DK, DV>;
  float4 state[Head::kRows][kGdnHeadThreads];
  float past[Head::kSlots][3][kGdnHeadThreads];

  __device__ __forceinline__ void fetch(const GdnRecurrent& a, const Head& head, const DeviceSequence& s) {
    const bool carried = s.q_len > 0 && s.state_in >= 0;
    const int slot = carried ? s.state_in : 0;
    const float* from = head.state_of(a, slot);
#pragma unroll
    for (int m = 0; m < Head::kRows; ++m) ptx::copy_async_16(&state[m][head.tid], from + m * DV, carried);
#pragma unroll
    for (int j = 0; j < Head::kSlots; ++j) {
      if (head.channel[j] < 0) continue;
      const float* history = head.history_of(a, slot, j);
#pragma unroll
      for (int i = 0; i < 3; ++i) ptx::copy_async_4(&past[j][i][head.tid], history + i, carried);
    }
    ptx::copy_async_commit();
  }
  // What the thread's copies brought, into registers.
  __device__ __forceinline__ void take_over(const Head& head, float4 (&to)[Head::kRows],
                                            typename Head::Row& row) const {
    ptx::copy_async_wait<0>();
#pragma unroll
    for (int m = 0; m < Head::kRows; ++m) to[m] = state[m][head.tid];
#pragma unroll
    for (int j = 0; j < Head::kSlots; ++j)
#pragma unroll
      for (int i = 0; i < 3; ++i) row.past[j][i] = head.channel[j] < 0 ? 0.f : past[j][i][head.tid];
  }
};

__device__ __forceinline__ DeviceSequence sequence_at(const GdnRecurrent& a, int index) {
  return index < a.sequences ? a.sequence[index] : DeviceSequence{};
}

// blockIdx: value head; first sequence, and row where that is padding. The next ones are gridDim.y further each.
template <int DK, int DV>
__global__ __launch_bounds__(kGdnHeadThreads, 2) void gdn_decode_ring_kernel(GdnRecurrent a, int count) {
  using Head = GdnHead<DK, DV>;
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ typename Head::Memory memory;
  auto& next = *reinterpret_cast<Next<DK, DV>*>(shared);
  int index = static_cast<int>(blockIdx.y);
  const int step = static_cast<int>(gridDim.y);
  ptx::trigger();
  // State, history and batch before the wait: see gdn_decode.cu.
  DeviceSequence s = sequence_at(a, index), behind = sequence_at(a, index + step);
  const Head head(a, static_cast<int>(blockIdx.x));
  next.fetch(a, head, s);
  ptx::wait();
  for (; index < count; index += step) {
    const bool padding = index < a.rows && a.row_sequence[index] < 0;
    typename Head::Row row;
    if (s.q_len > 0) head.load_projected(a, s.first_row, row);
    float4 state[Head::kRows];
    next.take_over(head, state, row);
    if (index + step < count) next.fetch(a, head, behind);
    const DeviceSequence now = s;
    s = behind;
    behind = sequence_at(a, index + 2 * step);
    if (padding && head.tid < DV) head.core_of(a, index)[head.tid] = 0;
    if (now.q_len > 0) head.take(a, memory, index, now, state, row);
  }
}

template <int DK, int DV>
void decode_of(const GdnRecurrent& a, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Next<DK, DV>);
  static_assert(kBytes + sizeof(typename GdnHead<DK, DV>::Memory) <= kGdnRingShared);
  const auto kernel = gdn_decode_ring_kernel<DK, DV>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  int device = 0, multiprocessors = 0, blocks = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kGdnHeadThreads, kBytes));
  // As many as fit the GPU, with an equal number of sequences each where that can be; but a few sequences each where
  // there are enough of them, even where more blocks would fit.
  const int count = std::max(a.sequences, a.rows), room = std::max(1, multiprocessors * blocks / a.value_heads);
  const int rounds = std::max({1, (count + room - 1) / room, std::min(3, count / 6)});
  const int groups = (count + rounds - 1) / rounds;
  launch({.grid = dim3(static_cast<unsigned>(a.value_heads), static_cast<unsigned>(groups)),
          .block = dim3(kGdnHeadThreads),
          .shared_bytes = kBytes,
          .stream = stream},
         kernel, a, count);
}

}  // namespace

void gdn_decode_ring(const GdnRecurrent& a, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (a.dk == 64) return a.dv == 64 ? decode_of<64, 64>(a, on) : decode_of<64, 128>(a, on);
  a.dv == 64 ? decode_of<128, 64>(a, on) : decode_of<128, 128>(a, on);
}

}  // namespace mettle::cuda
