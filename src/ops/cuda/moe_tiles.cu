// moe for many rows: see moe_tiles.h.
#include "ops/cuda/moe_tiles.h"

#include <algorithm>

#include "ops/cuda/device/moe_route.cuh"
#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/mma_tiles.h"
#include "ops/cuda/moe_combine.h"
#include "ops/cuda/moe_tiles_scratch.h"
#include "ops/cuda/moe_wide.h"
#include "ops/cuda/product.h"
#include "ops/cuda/wgmma_tiles.h"

namespace mettle::cuda {
namespace {

constexpr int kGroupThreads = 1024;
// Rows whose choices the grouping block makes itself: a launch and a trip to memory less. At 16 rows it gains nothing,
// with 64 the choices of one multiprocessor take 6 us longer than those of eight (H200).
constexpr int kRoutedTogether = 8;
static_assert(kRoutedTogether <= kGroupThreads / 32);  // a warp a row

struct Route {
  int rows, experts, top_k;
  bool renormalise, given, shared_gate;
  int logits_stride;
  const float* logits;
  int32_t* ids;
  float* weights;
  float* shared_scale;
};

// The choice of a row, by a warp.
template <int PER_LANE>
__device__ __forceinline__ void route_row(const Route& a, int64_t row, int lane) {
  const float* l = a.logits + row * a.logits_stride;
  if (lane == 0) a.shared_scale[row] = a.shared_gate ? sigmoid(l[a.experts]) : 1.f;
  if (a.given) return;
  const Choice c = choose_row<PER_LANE>(l, a.experts, a.top_k, a.renormalise, lane);
  if (lane < a.top_k) a.ids[row * a.top_k + lane] = c.id, a.weights[row * a.top_k + lane] = c.weight;
}

template <int PER_LANE>
__global__ __launch_bounds__(256) void moe_route_kernel(Route a) {
  const int64_t row = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  ptx::trigger();
  ptx::wait();
  if (row < a.rows) route_row<PER_LANE>(a, row, threadIdx.x % 32);
}

struct Grouping {
  int rows, experts, top_k, block_rows;
  bool rides;
  const ExpertPointers* pointers;
  ExpertPointers shared;
  const int32_t* ids;
  RowGroup* groups;
  int32_t* group_count;
  int32_t* row_of;
  int32_t* position;
};

// Pairs of a row and a choice that a thread looks after; several ids are asked for at once.
struct Pairs {
  static constexpr int kAtOnce = 8, kChunk = kAtOnce * kGroupThreads;
  int32_t id[kAtOnce], rank[kAtOnce];  // of padding -1; the place among the rows of its expert

  static __device__ int at(int first, int u) { return first + u * kGroupThreads + static_cast<int>(threadIdx.x); }
  __device__ void load(const int32_t* ids, int first, int pairs) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) id[u] = at(first, u) < pairs ? ids[at(first, u)] : -1;
  }
  __device__ void count(int32_t* of_expert) {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) rank[u] = id[u] >= 0 ? atomicAdd(&of_expert[id[u]], 1) : -1;
  }
  __device__ void place(const Grouping& a, const int32_t* first_of_expert, int first, int pairs) const {
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int i = at(first, u), to = rank[u] < 0 ? -1 : first_of_expert[id[u]] + rank[u];
      if (i >= pairs) continue;
      if (to >= 0) a.row_of[to] = i / a.top_k;
      a.position[i] = to;
    }
  }
};

// Counts, places of the experts' rows, groups: one block, thread e looks after expert e. The order of the rows inside
// an expert is whatever it happens to be. PER_LANE > 0: it makes the choices of its few rows first.
template <int PER_LANE>
__global__ __launch_bounds__(kGroupThreads) void moe_group_kernel(Route route, Grouping a) {
  __shared__ int32_t next[kMaxExperts];  // first the count of an expert's rows, then the first of them
  __shared__ int32_t warp_rows[kMaxExperts / 32], warp_groups[kMaxExperts / 32];
  const int e = threadIdx.x, warp = e / 32, lane = e % 32, pairs = a.rows * a.top_k;
  ptx::trigger();
  const ExpertPointers pointers = e < a.experts ? a.pointers[e] : ExpertPointers{};
  if (e < kMaxExperts) next[e] = 0;
  ptx::wait();
  if constexpr (PER_LANE > 0) {
    if (warp < a.rows) route_row<PER_LANE>(route, warp, lane);
  }
  __syncthreads();
  // Pairs of the first chunk stay in registers; the ranks of others wait where their positions will be.
  Pairs own;
  for (int first = Pairs::kChunk; first < pairs; first += Pairs::kChunk) {
    own.load(a.ids, first, pairs);
    own.count(next);
#pragma unroll
    for (int u = 0; u < Pairs::kAtOnce; ++u)
      if (Pairs::at(first, u) < pairs) a.position[Pairs::at(first, u)] = own.rank[u];
  }
  own.load(a.ids, 0, pairs);
  own.count(next);
  __syncthreads();
  const int count = e < kMaxExperts ? next[e] : 0, groups = (count + a.block_rows - 1) / a.block_rows;
  int rows_to_here = count, groups_to_here = groups;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int r = __shfl_up_sync(0xffffffffu, rows_to_here, d), n = __shfl_up_sync(0xffffffffu, groups_to_here, d);
    if (lane >= d) rows_to_here += r, groups_to_here += n;
  }
  if (lane == 31 && warp < kMaxExperts / 32) warp_rows[warp] = rows_to_here, warp_groups[warp] = groups_to_here;
  __syncthreads();
  int first = rows_to_here - count, group = groups_to_here - groups, all = 0;
#pragma unroll
  for (int w = 0; w < kMaxExperts / 32; ++w) {
    if (w < warp) first += warp_rows[w], group += warp_groups[w];
    all += warp_groups[w];
  }
  if (e < kMaxExperts) next[e] = first;
  for (int done = 0; done < count; done += a.block_rows, ++group)
    a.groups[group] = {pointers, first + done, min(a.block_rows, count - done)};
  const int shared_groups = a.rides ? (a.rows + a.block_rows - 1) / a.block_rows : 0;
  for (int i = threadIdx.x; i < shared_groups; i += blockDim.x)
    a.groups[all + i] = {a.shared, pairs + i * a.block_rows, min(a.block_rows, a.rows - i * a.block_rows)};
  if (threadIdx.x == 0) *a.group_count = all + shared_groups;
  __syncthreads();
  own.place(a, next, 0, pairs);
  for (int later = Pairs::kChunk; later < pairs; later += Pairs::kChunk) {
    own.load(a.ids, later, pairs);
#pragma unroll
    for (int u = 0; u < Pairs::kAtOnce; ++u)
      own.rank[u] = Pairs::at(later, u) < pairs ? a.position[Pairs::at(later, u)] : -1;
    own.place(a, next, later, pairs);
  }
  if (a.rides)
    for (int i = threadIdx.x; i < a.rows; i += blockDim.x) a.row_of[pairs + i] = i;
}

void run_pass(const MoeArgs& args, int first, int rows, TileEngine engine, CUstream_st* stream) {
  const MoeProblem& p = args.problem;
  const MoeWeights& w = *args.weights;
  const MoeTilesScratch s = carve_moe_tiles(p, rows, args.ws.data);
  const uint16_t* x = args.x.as<uint16_t>() + int64_t{first} * p.hidden;
  int32_t* ids = args.selection.ids + int64_t{first} * p.top_k;
  float* weights = args.selection.weights + int64_t{first} * p.top_k;
  const bool rides = shared_rides(p);
  const int block_rows = moe_block_rows(p, rows, engine);

  // Where the products will be: nothing is written there before the rows of x have been read.
  auto* ordered = reinterpret_cast<uint16_t*>(s.products);
  if (engine == TileEngine::kWide) moe_wide_order(x, rows, p.hidden, ordered, stream);
  product(w.router, x, rows, s.logits, stream);
  const Route route = {
      rows,     p.experts, p.top_k, p.renormalise, args.selection.given, p.shared_gate, static_cast<int>(w.router.rows),
      s.logits, ids,       weights, s.shared_scale};
  Grouping grouping = {rows, p.experts, p.top_k,  block_rows,    rides,    w.pointers,
                       {},   ids,       s.groups, s.group_count, s.row_of, s.position};
  if (rides)
    grouping.shared = {w.shared.gate_up.data, w.shared.gate_up.row_scale, w.shared.down.data, w.shared.down.row_scale};
  const bool many = p.experts > 256, together = rows <= kRoutedTogether;
  if (!together)
    launch({.grid = dim3(static_cast<unsigned>((rows + 7) / 8)), .block = dim3(256), .stream = stream},
           many ? moe_route_kernel<16> : moe_route_kernel<8>, route);
  launch({.grid = dim3(1), .block = dim3(kGroupThreads), .stream = stream},
         !together ? moe_group_kernel<0>
         : many    ? moe_group_kernel<16>
                   : moe_group_kernel<8>,
         route, grouping);

  RowGroups groups = {s.groups, s.group_count, moe_most_groups(p, rows, block_rows), s.row_of};
  const auto products = engine == TileEngine::kStream   ? moe_stream
                        : engine == TileEngine::kDirect ? moe_direct
                        : engine == TileEngine::kWide   ? moe_wide
                        : engine == TileEngine::kWgmma  ? wgmma_tiles
                                                        : mma_tiles;
  products({.weight = view_of(w.experts.front().gate_up),
            .x = engine == TileEngine::kWide ? ordered : x,
            .groups = groups,
            .h = s.h,
            .block_rows = block_rows,
            .stream = stream});
  groups.row_of = nullptr;
  products({.weight = view_of(w.experts.front().down),
            .x = s.h,
            .groups = groups,
            .y = s.products,
            .block_rows = block_rows,
            .stream = stream});
  if (p.shared_width > 0 && !rides) {
    product(w.shared.gate_up, x, rows, s.shared_gate_up, stream);
    moe_swiglu(s.shared_gate_up, rows, p.shared_width, s.shared_h, stream);
    product(w.shared.down, s.shared_h, rows, s.products + int64_t{rows} * p.top_k * p.hidden, stream);
  }
  moe_combine({.rows = rows,
               .hidden = p.hidden,
               .top_k = p.top_k,
               .has_shared = p.shared_width > 0,
               .weights = weights,
               .position = s.position,
               .shared_scale = s.shared_scale,
               .products = s.products,
               .partial = args.partial.as<float>() + int64_t{first} * p.hidden},
              stream);
}

// `direct` reads an expert's weights once for 16 rows; what follows it where experts have more.
TileEngine engine_of(TileEngine asked, const MoeProblem& p, int rows) {
  if (asked != TileEngine::kDirect || rows <= kMoeDirectMostRows) return asked;
  int device = 0, major = 0, minor = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return moe_wide_takes(p, 10 * major + minor) ? TileEngine::kWide : TileEngine::kMma;
}

}  // namespace

void moe_tiles(const MoeArgs& args, TileEngine engine, CUstream_st* stream) {
  for (int first = 0; first < args.rows; first += kMoeTilesRows) {
    const int rows = std::min(kMoeTilesRows, args.rows - first);
    run_pass(args, first, rows, engine_of(engine, args.problem, rows), stream);
  }
}

}  // namespace mettle::cuda
