// The kernels of sample_radix, in the order of their launch: prepare, scan, bins, collect; finish stands by itself.
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/device/sample_tile.cuh"
#include "ops/cuda/launch.h"

namespace mettle::cuda {
namespace {

constexpr int kBinsPerThread = kSampleBins / kTileThreads;
constexpr int kLowBits = 18;  // a mass is dealt out as two 32-bit numbers

// Brings the row's parameters here, clears its counters and bins, makes its changes.
__global__ __launch_bounds__(256) void prepare_kernel(SampleLaunch a, SampleScratch s) {
  __shared__ DeviceSampleRow params;
  ptx::trigger();
  ptx::wait();
  const int row = blockIdx.x;
  if (threadIdx.x == 0) {
    params = a.sample.rows[row];
    SampleState& state = s.state[row];
    state.params = params;
    state.tickets[0] = state.tickets[1] = state.listed = state.alternatives = 0;
  }
  __syncthreads();
  if (params.temperature > 0)
    for (int b = threadIdx.x; b < kSampleBins; b += blockDim.x) {
      s.bin_count[int64_t{row} * kSampleBins + b] = 0;
      s.bin_mass[int64_t{row} * kSampleBins + b] = 0;
    }
  adjust_row(a, row, params);
}

// The largest key that at least `wanted` warps' best logits reach: so do as many logits.
__device__ uint32_t key_reached_by(const uint32_t* keys, int count, int wanted) {
  __shared__ uint32_t found, staged[kSampleIds / kSampleTile * kSampleWarps];
  if (threadIdx.x == 0) found = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) staged[i] = __ldcg(keys + i);
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    int before = 0;
    for (int j = 0; j < count; ++j) before += staged[j] > staged[i] || (staged[j] == staged[i] && j < i) ? 1 : 0;
    if (before == wanted - 1) found = staged[i];
  }
  __syncthreads();
  return found;
}

// What the chunks of a row say together; a greedy row is done with it.
__device__ void join_chunks(const SampleLaunch& a, const SampleScratch& s, int row) {
  SampleState& state = s.state[row];
  const DeviceSampleRow& p = state.params;
  const SampleChunk* chunks = s.chunk + int64_t{row} * s.chunks;
  const int count = gridDim.x;
  float top = -INFINITY;
  uint64_t best = 0;
  bool bad = false;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    top = fmaxf(top, __ldcg(&chunks[i].top));
    const uint64_t place = __ldcg(&chunks[i].best);
    best = place > best ? place : best;
    bad |= __ldcg(&chunks[i].bad) != 0;
  }
  bad = __syncthreads_or(bad) != 0;
  top = block_max(top);
  best = block_max(best);
  double sum = 0;
  if (!bad)
    for (int i = threadIdx.x; i < count; i += blockDim.x)
      sum += static_cast<double>(__ldcg(&chunks[i].sum)) * expf(__ldcg(&chunks[i].top) - top);
  sum = block_sum(sum);
  bad |= key_at(best) <= kForbidden;  // every token is forbidden
  const int wanted = bad ? 0 : min(min(p.top_logprobs, 20), a.usable);
  const uint32_t least =
      wanted > 0 ? key_reached_by(s.warp_best + int64_t{row} * s.chunks * kSampleWarps, count * kSampleWarps, wanted)
                 : 0;
  const bool draws = !bad && p.temperature > 0;
  const double log_sum = static_cast<double>(top) + log(sum);
  if (!draws && wanted == 0) {
    __shared__ SampleResult result;
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(SampleResult) / 4); i += blockDim.x)
      reinterpret_cast<uint32_t*>(&result)[i] = i == 0 ? ~0u : 0u;  // token -1
    __syncthreads();
    if (threadIdx.x == 0 && !bad) {
      result.token = id_at(best);
      result.logprob = logprob_of(a.logits[int64_t{row} * a.vocab + result.token], log_sum);
    }
    write_result(result, a.results + row);
  }
  if (threadIdx.x == 0) {
    state.mode = (draws ? kSampleDraws : 0u) | (wanted > 0 ? kSampleAlternatives : 0u);
    state.least_alternative = least;
    state.best = best;
    state.top = logit_of(key_at(best));
    state.per_temperature = per_temperature_of(p);
    state.log_sum = log_sum;
  }
}

// One pass: finite, largest logit, sum of exp, best token.
template <bool VECTOR>
__global__ __launch_bounds__(kTileThreads) void scan_kernel(SampleLaunch a, SampleScratch s, int chunk) {
  ptx::trigger();
  ptx::wait();
  const int row = blockIdx.y, begin = blockIdx.x * chunk, end = min(begin + chunk, a.usable);
  SampleState& state = s.state[row];
  const RowLogits logits = logits_of(a, row, state.params);
  float top = -INFINITY, sum = 0;
  int at = -1;
  bool bad = false;
  uint64_t best = 0;
  for (int base = begin; base < end; base += kSampleTile) {
    SampleTile<VECTOR> tile;
    tile.load(logits.raw, base, end);
    const bool whole = base + kSampleTile <= end;
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      bad |= !isfinite(tile.v[j]) && (whole || tile.id(base, j) < end);
      most = fmaxf(most, tile.v[j]);
    }
    if (most > top) {
      sum *= expf(top - most);
      top = most;
#pragma unroll
      for (int j = kPerThread - 1; j >= 0; --j)
        if (tile.v[j] == most) at = tile.id(base, j);
    }
    if (top > -INFINITY) {
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) sum += expf(tile.v[j] - top);
    }
    if (logits.changed == nullptr) continue;
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      const int id = tile.id(base, j);
      if (id >= end) continue;
      const uint64_t place = place_of(logits.adjusted(id, tile.v[j]), id);
      best = place > best ? place : best;
    }
  }
  if (logits.changed == nullptr && at >= 0) best = place_of(top, at);
  if (state.params.top_logprobs > 0) {
    float of_warp = top;
#pragma unroll
    for (int d = 16; d > 0; d /= 2) of_warp = fmaxf(of_warp, __shfl_xor_sync(0xffffffffu, of_warp, d));
    if (threadIdx.x % 32 == 0)
      s.warp_best[(int64_t{row} * s.chunks + blockIdx.x) * kSampleWarps + threadIdx.x / 32] = key_of(of_warp);
  }
  const float most = block_max(top);
  sum = block_sum(top > -INFINITY ? sum * expf(top - most) : 0.f);
  best = block_max(best);
  bad = __syncthreads_or(bad) != 0;
  if (threadIdx.x == 0) s.chunk[int64_t{row} * s.chunks + blockIdx.x] = {best, most, sum, bad ? 1u : 0u, 0};
  if (last_block(&state.tickets[0])) join_chunks(a, s, row);
}

// Bins [low, high] in which a limit falls.
struct Bins {
  int low, high;
  __device__ bool hold(int b) const { return b >= low && b <= high; }
};

// Running sums over all bins, and which bins matter. Limits that depend on a sum inside another limit's bin are
// followed for the least and the largest sum there can be.
struct Limits {
  const uint32_t* count;  // up to and with a bin
  const uint64_t* mass;

  __device__ uint64_t before(int b) const { return b == 0 ? 0 : mass[b - 1]; }
  template <class T>
  static __device__ int first_above(const T* sums, T target) {
    int low = 0, high = kSampleBins - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (sums[middle] > target)
        high = middle;
      else
        low = middle + 1;
    }
    return low;
  }

  __device__ void find(const DeviceSampleRow& p, int usable, Bins* bins, uint64_t* least_mass) const {
    constexpr int kLast = kSampleBins - 1;
    const Bins none{1, 0};
    bins[0] = bins[1] = bins[2] = bins[3] = none;
    uint64_t least = mass[kLast], most = mass[kLast];  // of the kept tokens
    Bins end{kLast, kLast};                            // of the last kept token
    if (p.top_k > 0 && p.top_k < usable) {
      const int b = first_above(count, static_cast<uint32_t>(p.top_k - 1));
      bins[0] = end = {b, b};
      least = before(b), most = mass[b];
    }
    if (p.top_p < 1) {
      const int high = min(first_above(mass, top_p_limit(p.top_p, most) - 1), end.high);
      const int low = min(first_above(mass, top_p_limit(p.top_p, least) - 1), high);
      bins[1] = end = {low, high};
      least = before(low), most = mass[high];
    }
    *least_mass = mass[kLast];
    if (p.min_p > 0) {
      // A bin more on both sides for the rounding of distances.
      const float at = -logf(p.min_p) * kBinsPerFactor;
      const int b = at <= 0 ? 0 : at < kLast ? static_cast<int>(at) : kLast;
      const Bins min_p{max(b - 1, 0), min(b + 1, kLast)};
      *least_mass = mass[min_p.high];
      if (min_p.low <= end.high) {
        bins[2] = min_p;
        least = min(least, before(min_p.low));
        most = min(most, mass[min_p.high]);
      }
    }
    const int high = first_above(mass, drawn_mass(p.random, most));
    const int low = least == 0 ? 0 : first_above(mass, drawn_mass(p.random, least));
    bins[3] = {min(low, high), high};
  }
};

// Sums over all bins of a row, which of them are to be collected, and what stands before each beside those.
__device__ void choose_bins(const SampleLaunch& a, const SampleScratch& s, int row, uint32_t* counts,
                            uint64_t* masses) {
  __shared__ Bins bins[4];
  SampleState& state = s.state[row];
  uint32_t* bin_count = s.bin_count + int64_t{row} * kSampleBins;
  uint64_t* bin_mass = s.bin_mass + int64_t{row} * kSampleBins;
  const int first = threadIdx.x * kBinsPerThread;
  uint32_t count[kBinsPerThread], count_sum = 0;
  uint64_t mass[kBinsPerThread], mass_sum = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    count_sum += count[i] = __ldcg(bin_count + first + i);
    mass_sum += mass[i] = __ldcg(bin_mass + first + i);
  }
  uint32_t count_before = block_sum_before(count_sum);
  uint64_t mass_before = block_sum_before(mass_sum);
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    counts[first + i] = count_before += count[i];
    masses[first + i] = mass_before += mass[i];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    Limits{counts, masses}.find(state.params, a.usable, bins, &state.least_mass);
    state.total = masses[kSampleBins - 1];
  }
  __syncthreads();
  uint32_t collect = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    const int b = first + i;
    if (bins[0].hold(b) || bins[1].hold(b) || bins[2].hold(b) || bins[3].hold(b)) collect |= 1u << i;
  }
  state.collect[threadIdx.x] = static_cast<uint8_t>(collect);
  uint32_t listed = 0;
  count_sum = 0, mass_sum = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    if ((collect >> i & 1) != 0)
      listed += count[i];
    else
      count_sum += count[i], mass_sum += mass[i];
  }
  listed = block_sum(listed);
  count_before = block_sum_before(count_sum);
  mass_before = block_sum_before(mass_sum);
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    bin_count[first + i] = count_before;
    bin_mass[first + i] = mass_before;
    if ((collect >> i & 1) == 0) count_before += count[i], mass_before += mass[i];
  }
  if (threadIdx.x == 0 && listed > kSampleList) state.mode = kSamplePlain;
}

// Deals the tokens of rows that draw into bins.
template <bool VECTOR>
__global__ __launch_bounds__(kTileThreads) void bins_kernel(SampleLaunch a, SampleScratch s, int chunk) {
  static_assert(kBinsPerThread == 8, "a thread's bins are a byte of SampleState::collect");
  __shared__ __align__(8) uint32_t memory[3 * kSampleBins];
  ptx::trigger();
  ptx::wait();
  const int row = blockIdx.y, begin = blockIdx.x * chunk, end = min(begin + chunk, a.usable);
  SampleState& state = s.state[row];
  if ((state.mode & kSampleDraws) == 0) return;
  uint32_t *count = memory, *low = memory + kSampleBins, *high = memory + 2 * kSampleBins;
  for (int i = threadIdx.x; i < 3 * kSampleBins; i += blockDim.x) memory[i] = 0;
  __syncthreads();
  const float top = state.top, per_temperature = state.per_temperature;
  const float bins_per_logit = bins_per_logit_of(per_temperature);
  uint32_t rest_count = 0, rest_mass = 0;  // of the last bin: most tokens, hardly any mass
  each_token<VECTOR>(logits_of(a, row, state.params), begin, end, [&](int, float, float v) {
    const int b = bin_of(v, top, bins_per_logit);
    const auto mass = mass_of(weight_of(v, top, per_temperature));
    if (b == kSampleBins - 1) {
      ++rest_count;
      rest_mass += static_cast<uint32_t>(mass);
    } else {
      atomicAdd(count + b, 1u);
      atomicAdd(low + b, static_cast<uint32_t>(mass) & ((1u << kLowBits) - 1));
      if (mass >> kLowBits != 0) atomicAdd(high + b, static_cast<uint32_t>(mass >> kLowBits));
    }
  });
  if (rest_count > 0) {
    atomicAdd(count + kSampleBins - 1, rest_count);
    atomicAdd(low + kSampleBins - 1, rest_mass);
  }
  __syncthreads();
  uint32_t* bin_count = s.bin_count + int64_t{row} * kSampleBins;
  auto* bin_mass = reinterpret_cast<unsigned long long*>(s.bin_mass + int64_t{row} * kSampleBins);
  for (int b = threadIdx.x; b < kSampleBins; b += blockDim.x)
    if (count[b] > 0) {
      atomicAdd(bin_count + b, count[b]);
      atomicAdd(bin_mass + b, (static_cast<unsigned long long>(high[b]) << kLowBits) + low[b]);
    }
  if (!last_block(&state.tickets[1])) return;
  auto* masses = reinterpret_cast<uint64_t*>(memory);
  choose_bins(a, s, row, memory + 2 * kSampleBins, masses);
}

// Lists the tokens of the chosen bins, and the raw logits that may be among the alternatives.
template <bool VECTOR>
__global__ __launch_bounds__(kTileThreads) void collect_kernel(SampleLaunch a, SampleScratch s, int chunk) {
  __shared__ uint8_t collect[kSampleBins / 8];
  ptx::trigger();
  ptx::wait();
  const int row = blockIdx.y, begin = blockIdx.x * chunk, end = min(begin + chunk, a.usable);
  SampleState& state = s.state[row];
  if ((state.mode & (kSampleDraws | kSampleAlternatives)) == 0) return;
  collect[threadIdx.x] = state.collect[threadIdx.x];
  __syncthreads();
  const bool draws = (state.mode & kSampleDraws) != 0, alternatives = (state.mode & kSampleAlternatives) != 0;
  const float top = state.top, bins_per_logit = bins_per_logit_of(state.per_temperature);
  const uint32_t least = state.least_alternative;
  const auto list = [row](uint64_t place, uint64_t* to, uint32_t* listed) {
    const uint32_t at = atomicAdd(listed, 1u);
    if (at < kSampleList) to[int64_t{row} * kSampleList + at] = place;
  };
  each_token<VECTOR>(logits_of(a, row, state.params), begin, end, [&](int id, float raw, float v) {
    if (draws) {
      const int b = bin_of(v, top, bins_per_logit);
      if ((collect[b / 8] >> (b % 8) & 1) != 0) list(place_of(v, id), s.drawn, &state.listed);
    }
    if (alternatives && key_of(raw) >= least) list(place_of(raw, id), s.alternatives, &state.alternatives);
  });
}

// Small chunks for few rows, so that all multiprocessors have work; never fewer than four where there are 20 warps to
// be had for the alternatives.
int chunk_of(int rows, int usable) {
  int chunk = rows <= 8 ? kSampleTile : rows <= 24 ? 2 * kSampleTile : kSampleMostChunk;
  while (chunk > kSampleTile && usable <= 3 * chunk) chunk /= 2;
  return chunk;
}

template <bool VECTOR>
void run(const SampleLaunch& a, const SampleScratch& s, cudaStream_t stream) {
  const int chunk = chunk_of(a.rows, a.usable);
  const Launch rows{.grid = dim3(a.rows), .block = dim3(256), .stream = stream};
  const Launch chunks{
      .grid = dim3((a.usable + chunk - 1) / chunk, a.rows), .block = dim3(kTileThreads), .stream = stream};
  launch(rows, prepare_kernel, a, s);
  launch(chunks, scan_kernel<VECTOR>, a, s, chunk);
  launch(chunks, bins_kernel<VECTOR>, a, s, chunk);
  launch(chunks, collect_kernel<VECTOR>, a, s, chunk);
  sample_finish(a, s, stream);
}

}  // namespace

void sample_radix(const SampleLaunch& a, const SampleScratch& s, CUstream_st* stream) {
  if (a.rows == 0) return;
  if (a.vocab % 4 == 0 && reinterpret_cast<uintptr_t>(a.logits) % 16 == 0)
    run<true>(a, s, stream);
  else
    run<false>(a, s, stream);
}

}  // namespace mettle::cuda
