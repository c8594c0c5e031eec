// One row of every sequence, from the projections to the core (device/gdn_head.cuh): a block for each value head of
// each sequence. All loads of the state are under way before anything else.
#include <algorithm>

#include "ops/cuda/device/gdn_head.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/gdn_recurrent.h"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

// blockIdx: value head; sequence, and row where that is padding.
template <int DK, int DV>
__global__ __launch_bounds__(kGdnHeadThreads, 2) void gdn_decode_kernel(GdnRecurrent a) {
  using Head = GdnHead<DK, DV>;
  __shared__ typename Head::Memory memory;
  const int index = static_cast<int>(blockIdx.y);
  ptx::trigger();
  // State, history and batch are read before the wait for this step's kernels: the kernels that wrote the first two
  // belong to the step before, and between two steps lie the copies of the next one's batch, which no kernel overtakes.
  const DeviceSequence s = index < a.sequences ? a.sequence[index] : DeviceSequence{};
  const bool there = s.q_len > 0, carried = there && s.state_in >= 0;
  const Head head(a, static_cast<int>(blockIdx.x));
  float4 state[Head::kRows];
#pragma unroll
  for (int m = 0; m < Head::kRows; ++m)
    state[m] =
        carried ? *reinterpret_cast<const float4*>(head.state_of(a, s.state_in) + m * DV) : make_float4(0, 0, 0, 0);
  typename Head::Row row;
#pragma unroll
  for (int j = 0; j < Head::kSlots; ++j) {
    row.past[j][0] = row.past[j][1] = row.past[j][2] = 0;
    if (head.channel[j] < 0 || !carried) continue;
    const float* history = head.history_of(a, s.state_in, j);
    row.past[j][0] = history[0], row.past[j][1] = history[1], row.past[j][2] = history[2];
  }
  ptx::wait();
  if (head.tid < DV && index < a.rows && a.row_sequence[index] < 0) head.core_of(a, index)[head.tid] = 0;
  if (!there) return;
  head.load_projected(a, s.first_row, row);
  head.take(a, memory, index, s, state, row);
}

__global__ __launch_bounds__(kGdnHeadThreads) void gdn_clear_kernel(int32_t* tickets, int count) {
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
      .block = dim3(kGdnHeadThreads),
      .stream = static_cast<cudaStream_t>(stream)};
  a.dk == 64 ? decode_of<64>(a, l) : decode_of<128>(a, l);
}

void gdn_clear(const GdnRecurrent& a, void* stream) {
  launch({.grid = dim3(static_cast<unsigned>((gdn_tickets(a) + kGdnHeadThreads - 1) / kGdnHeadThreads)),
          .block = dim3(kGdnHeadThreads),
          .stream = static_cast<cudaStream_t>(stream)},
         gdn_clear_kernel, a.tickets, gdn_tickets(a));
}

}  // namespace mettle::cuda
