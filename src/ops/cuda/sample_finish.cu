// The last kernel of sample_radix: the collected tokens of a row are sorted, the limits applied, the token drawn.
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/device/sample_tile.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kFinishThreads = 512;

// The list in shared memory, best first.
__device__ void sort_list(const uint64_t* list, int count, uint64_t* sorted) {
  int size = 32;
  while (size < count) size *= 2;
  __syncthreads();
  for (int i = threadIdx.x; i < size; i += blockDim.x) sorted[i] = i < count ? list[i] : 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2)
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += blockDim.x) {
        const int low = i / step * 2 * step + i % step, high = low + step;
        const uint64_t x = sorted[low], y = sorted[high];
        if ((x < y) == ((low & run) == 0)) sorted[low] = y, sorted[high] = x;
      }
      __syncthreads();
    }
}

// The drawn token, or -1: `sorted` holds all tokens of the bins that matter.
__device__ int draw_sorted(const SampleLaunch& a, const SampleScratch& s, int row, const uint64_t* sorted, int count) {
  __shared__ uint64_t kept;
  __shared__ int token;
  const SampleState& state = s.state[row];
  const DeviceSampleRow& p = state.params;
  const uint32_t* count_before = s.bin_count + int64_t{row} * kSampleBins;
  const uint64_t* mass_before = s.bin_mass + int64_t{row} * kSampleBins;
  const float top = state.top, per_temperature = state.per_temperature;
  const float bins_per_logit = bins_per_logit_of(per_temperature);
  const int each = (count + blockDim.x - 1) / blockDim.x;
  const int first = min(static_cast<int>(threadIdx.x) * each, count), end = min(first + each, count);
  uint64_t own = 0;
  for (int i = first; i < end; ++i) own += mass_of(weight_of(logit_of(key_at(sorted[i])), top, per_temperature));
  const uint64_t before_own = block_sum_before(own);
  // f(tokens before it, mass before it, weight, mass, token) of this thread's part of the list.
  const auto walk = [&](auto f) {
    uint64_t before = before_own;
    for (int i = first; i < end; ++i) {
      const float v = logit_of(key_at(sorted[i])), w = weight_of(v, top, per_temperature);
      const int b = bin_of(v, top, bins_per_logit);
      const uint64_t mass = mass_of(w);
      f(static_cast<uint32_t>(i) + count_before[b], before + mass_before[b], w, mass, id_at(sorted[i]));
      before += mass;
    }
  };
  if (threadIdx.x == 0) kept = state.total, token = -1;
  __syncthreads();
  if (p.top_k > 0 && p.top_k < a.usable) {
    const auto last = static_cast<uint32_t>(p.top_k - 1);
    walk([&](uint32_t place, uint64_t before, float, uint64_t mass, int) {
      if (place == last) kept = before + mass;
    });
    __syncthreads();
  }
  if (p.top_p < 1) {
    const uint64_t limit = top_p_limit(p.top_p, kept);
    __syncthreads();
    walk([&](uint32_t, uint64_t before, float, uint64_t mass, int) {
      if (before < limit && limit <= before + mass) kept = before + mass;
    });
    __syncthreads();
  }
  uint64_t all = kept;
  if (p.min_p > 0) {
    uint64_t heavy = state.least_mass;
    walk([&](uint32_t, uint64_t before, float w, uint64_t, int) {
      if (w < p.min_p && before < heavy) heavy = before;
    });
    heavy = block_min(heavy);
    const uint64_t best = mass_of(1.f);  // the best token always stays
    all = heavy < all ? heavy : all;
    all = all < best ? best : all;
  }
  const uint64_t target = drawn_mass(p.random, all);
  walk([&](uint32_t, uint64_t before, float, uint64_t mass, int id) {
    if (before <= target && target < before + mass) token = id;
  });
  __syncthreads();
  return token;
}

__global__ __launch_bounds__(kFinishThreads) void finish_kernel(SampleLaunch a, SampleScratch s) {
  extern __shared__ __align__(16) uint64_t sorted[];
  __shared__ SampleResult result;
  ptx::trigger();
  ptx::wait();
  const int row = blockIdx.x;
  const SampleState& state = s.state[row];
  if (state.mode == kSampleDone) return;
  if ((state.mode & kSamplePlain) != 0 || state.alternatives > kSampleList || state.listed > kSampleList)
    return sample_row_plain(a, row, state.params);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(SampleResult) / 4); i += blockDim.x)
    reinterpret_cast<uint32_t*>(&result)[i] = 0;
  int token = id_at(state.best);
  if ((state.mode & kSampleDraws) != 0) {
    sort_list(s.drawn + int64_t{row} * kSampleList, state.listed, sorted);
    token = draw_sorted(a, s, row, sorted, state.listed);
    if (token < 0) return sample_row_plain(a, row, state.params);  // never a token that is no id
  }
  if ((state.mode & kSampleAlternatives) != 0) {
    sort_list(s.alternatives + int64_t{row} * kSampleList, state.alternatives, sorted);
    const int i = threadIdx.x;
    if (i < min(min(state.params.top_logprobs, 20), a.usable)) {
      result.top_ids[i] = id_at(sorted[i]);
      result.top_logprobs[i] = logprob_of(logit_of(key_at(sorted[i])), state.log_sum);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    result.token = token;
    result.logprob = logprob_of(a.logits[int64_t{row} * a.vocab + token], state.log_sum);
  }
  write_result(result, a.results + row);
}

}  // namespace

void sample_finish(const SampleLaunch& a, const SampleScratch& s, CUstream_st* stream) {
  const Launch finish{.grid = dim3(a.rows),
                      .block = dim3(kFinishThreads),
                      .shared_bytes = kSampleList * sizeof(uint64_t),
                      .stream = stream};
  CUDA_CHECK(cudaFuncSetAttribute(finish_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(finish.shared_bytes)));
  launch(finish, finish_kernel, a, s);
}

}  // namespace mettle::cuda
