// gdn's products for 17 to 256 rows: blocks of 128 rows of a matrix against 32 or 64 rows of x. The projections are one
// launch, blocks of qkv, z and ba side by side: one after the other would leave half of a GPU idle twice. The output
// product has few blocks: they are split along k, and a second launch adds the parts in order.
#include <algorithm>

#include "ops/cuda/device/gdn_few_rows.cuh"
#include "ops/cuda/device/mma_tiles.cuh"
#include "ops/cuda/gdn_recurrent.h"

namespace mettle::cuda {
namespace {

constexpr int kMostRows = 256;  // of a step; with more of them every product fills the GPU by itself
constexpr int kBlocks = 256;    // that are enough for a GPU: splitting k stops there

struct Projections {
  P64View qkv, z, ba;
  float *qkv_out, *z_out, *ba_out;
  int ba_blocks, qkv_blocks, parts;  // blocks of ba; of qkv, for each part of the rows and each share
  int shares;                        // of k
  const uint16_t* x;
  int rows;
  int32_t* tickets;
  int ticket_count;
};

// What a block holds of the weights and x in shared memory: two blocks fit a multiprocessor.
template <class W, int BN>
struct Stages {
  static constexpr int kCount = 96 * 1024 / tiles::Shape<W, BN>::kStage, kBytes = kCount * tiles::Shape<W, BN>::kStage;
  static_assert(kCount >= 2);
};

struct BlockMemory {  // beside the stages
  float row_scale[tiles::kTileRows * 16];
  int32_t x_row[64];
};

// Steps of 128 k.
struct Steps {
  int begin, end;
};
__device__ __forceinline__ Steps all_steps(const P64View& w) {
  return {0, (w.cols + tiles::kStepK - 1) / tiles::kStepK};
}

// Rows `block` * 128 .. + 127 of w times rows first .. first + BN - 1 of x over some steps: as mma_tiles does it.
template <class W, int BN>
__device__ __forceinline__ void project_block(const P64View& w, const uint16_t* x, float* y, int rows, int block,
                                              int first, const Steps& of, uint8_t* stages, BlockMemory& memory) {
  using S = tiles::Shape<W, BN>;
  constexpr int kStages = Stages<W, BN>::kCount;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32), g = lane / 4,
            t = lane % 4;
  const int count = min(BN, rows - first), steps = of.end - of.begin;
  tiles::Copier<W, BN> copier;
  const int tile = block * tiles::kTileRows + warp;
  copier.has_tile = tile < w.tiles;
  copier.unit_tiles = w.unit_tiles;
  copier.pairs_log2 = 31 - __clz(w.unit_tiles / 2);
  copier.unit_bytes = (W::kPair + W::kScales) * (w.unit_tiles / 2);
  copier.weights = w.payload + (copier.has_tile ? int64_t{tile} * w.units * copier.unit_bytes : 0);
  copier.cols = w.cols;
  copier.x = x + threadIdx.x % 16 * 8;
  copier.x_row = memory.x_row;
  if (threadIdx.x < tiles::kTileRows * 16) {
    const int row = block * tiles::kTileRows * 16 + static_cast<int>(threadIdx.x);
    const bool ok = row < w.tiles * 16;
    ptx::copy_async_4(&memory.row_scale[threadIdx.x], w.row_scale + (ok ? row : 0), ok);
  }
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s)
    if (s < steps) copier.copy_weights(stages + s * S::kStage, of.begin + s);
  for (int column = static_cast<int>(threadIdx.x); column < BN; column += static_cast<int>(blockDim.x))
    memory.x_row[column] = column < count ? first + column : -1;
  ptx::wait();  // weights are there from the start, rows of x come from the kernel before
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) copier.copy_x(stages + s * S::kStage, of.begin + s);
    ptx::copy_async_commit();
  }

  const int first_tile = warp / S::kColumnWarps * S::kRowTiles;
  const int first_column = warp % S::kColumnWarps * (BN / S::kColumnWarps);
  float c[S::kRowTiles][S::kBlocks][4] = {};
  int now = 0, next = kStages - 1;
  for (int s = 0; s < steps; ++s) {
    ptx::copy_async_wait<kStages - 2>();
    __syncthreads();
    if (s + kStages - 1 < steps) {
      copier.copy_weights(stages + next * S::kStage, of.begin + s + kStages - 1);
      copier.copy_x(stages + next * S::kStage, of.begin + s + kStages - 1);
    }
    ptx::copy_async_commit();
    tiles::multiply_stage<W, BN>(c, stages + now * S::kStage, first_tile, first_column, count, lane);
    now = now + 1 == kStages ? 0 : now + 1;
    next = next + 1 == kStages ? 0 : next + 1;
  }

#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r) {
    const int at = block * tiles::kTileRows + first_tile + r;
    if (at >= w.tiles) break;
    const float scale0 = memory.row_scale[(first_tile + r) * 16 + g] * W::kOut;
    const float scale1 = memory.row_scale[(first_tile + r) * 16 + g + 8] * W::kOut;
#pragma unroll
    for (int n = 0; n < S::kBlocks; ++n)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int column = first_column + n * 8 + 2 * t + q;
        if (column >= count) continue;
        float* to = y + int64_t{first + column} * w.rows + at * 16 + g;
        if (at * 16 + g < w.rows) to[0] = c[r][n][q] * scale0;
        if (at * 16 + g + 8 < w.rows) to[8] = c[r][n][q + 2] * scale1;
      }
  }
}

// Blocks of ba (bf16; a tile of it against sixteen rows of x each), then of qkv, then of z; neighbours share weights.
template <class W, int BN>
__global__ __launch_bounds__(256, 2) void gdn_project_tiles_kernel(Projections p) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ BlockMemory memory;
  const int index = static_cast<int>(blockIdx.x), rest = index - p.ba_blocks;
  ptx::trigger();
  if (rest < 0) {
    const int first = index / p.ba.tiles * kGdnFewRows;
    gdn_few_rows<p64::Bf16Stream, kGdnFewRows / 8, kGdnWarps, false>(
        p.ba, p.x + int64_t{first} * p.ba.cols, p.ba_out + int64_t{first} * p.ba.rows, p.rows - first,
        index % p.ba.tiles, reinterpret_cast<float4(*)[kGdnFewRows / 8][32]>(shared));
    if (index > 0) return;
    ptx::wait();  // warps without a share of k have not
    for (int i = static_cast<int>(threadIdx.x); i < p.ticket_count; i += static_cast<int>(blockDim.x)) p.tickets[i] = 0;
    return;
  }
  const int share = rest / p.parts % p.shares, block = rest / p.parts / p.shares, first = rest % p.parts * BN;
  const bool is_z = block >= p.qkv_blocks;
  const P64View& w = is_z ? p.z : p.qkv;
  const int steps = all_steps(w).end;
  project_block<W, BN>(w, p.x, (is_z ? p.z_out : p.qkv_out) + int64_t{share} * p.rows * w.rows, p.rows,
                       is_z ? block - p.qkv_blocks : block, first,
                       {steps * share / p.shares, steps * (share + 1) / p.shares}, shared, memory);
}

struct Output {
  P64View weight;
  const uint16_t* core;
  float* y;  // [splits, rows, weight.rows]
  int rows, splits;
};

// blockIdx: BN rows of core, block of the weight, split.
template <class W, int BN>
__global__ __launch_bounds__(256, 2) void gdn_output_kernel(Output p) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ BlockMemory memory;
  ptx::trigger();
  const int split = static_cast<int>(blockIdx.z), steps = all_steps(p.weight).end;
  project_block<W, BN>(p.weight, p.core, p.y + int64_t{split} * p.rows * p.weight.rows, p.rows,
                       static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x) * BN,
                       {steps * split / p.splits, steps * (split + 1) / p.splits}, shared, memory);
}

// Sum of the splits, in their order; `count` of float4.
__global__ __launch_bounds__(256) void gdn_output_sum_kernel(const float4* part, float4* y, int splits, int count) {
  ptx::trigger();
  ptx::wait();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  float4 sum = part[i];
#pragma unroll 8
  for (int s = 1; s < splits; ++s) {
    const float4 v = part[int64_t{s} * count + i];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  y[i] = sum;
}

int blocks_of(const P64View& w) { return (w.tiles + tiles::kTileRows - 1) / tiles::kTileRows; }

template <class W, int BN>
void launch_blocks(Projections p, cudaStream_t stream) {
  constexpr int kBytes = Stages<W, BN>::kBytes;
  CUDA_CHECK(
      cudaFuncSetAttribute(gdn_project_tiles_kernel<W, BN>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  p.ba_blocks = p.ba.tiles * ((p.rows + kGdnFewRows - 1) / kGdnFewRows);
  p.qkv_blocks = blocks_of(p.qkv);
  p.parts = (p.rows + BN - 1) / BN;
  launch({.grid = dim3(static_cast<unsigned>(p.ba_blocks + (p.qkv_blocks + blocks_of(p.z)) * p.parts * p.shares)),
          .block = dim3(256),
          .shared_bytes = kBytes,
          .stream = stream},
         gdn_project_tiles_kernel<W, BN>, p);
}

template <class W>
int project_together(const Projections& p, cudaStream_t stream) {
  p.rows <= 32 ? launch_blocks<W, 32>(p, stream) : launch_blocks<W, 64>(p, stream);
  return p.shares;
}

template <class W, int BN>
void launch_output(Output p, float* partial, float* parts, cudaStream_t stream) {
  constexpr int kBytes = Stages<W, BN>::kBytes;
  CUDA_CHECK(cudaFuncSetAttribute(gdn_output_kernel<W, BN>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int columns = (p.rows + BN - 1) / BN, blocks = blocks_of(p.weight);
  const int steps = (p.weight.cols + tiles::kStepK - 1) / tiles::kStepK;
  p.splits = std::max(
      1, std::min({kGdnOutputSplits, kGdnOutputParts / (columns * BN), kBlocks / (blocks * columns), steps / 2}));
  p.y = p.splits == 1 ? partial : parts;
  launch({.grid = dim3(static_cast<unsigned>(columns), static_cast<unsigned>(blocks), static_cast<unsigned>(p.splits)),
          .block = dim3(256),
          .shared_bytes = kBytes,
          .stream = stream},
         gdn_output_kernel<W, BN>, p);
  if (p.splits == 1) return;
  const int count = p.rows * p.weight.rows / 4;  // a row of partial is hidden wide, a multiple of 16
  launch({.grid = dim3(static_cast<unsigned>((count + 255) / 256)), .block = dim3(256), .stream = stream},
         gdn_output_sum_kernel, reinterpret_cast<const float4*>(parts), reinterpret_cast<float4*>(partial), p.splits,
         count);
}

template <class W>
void output_of(const Output& p, float* partial, float* parts, cudaStream_t stream) {
  p.rows <= 32 ? launch_output<W, 32>(p, partial, parts, stream) : launch_output<W, 64>(p, partial, parts, stream);
}

}  // namespace

int gdn_project_tiles(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  Projections p{.qkv = view_of(weights.qkv),
                .z = view_of(weights.z),
                .ba = view_of(weights.ba),
                .qkv_out = a.qkv,
                .z_out = a.z,
                .ba_out = a.ba,
                .ba_blocks = 0,
                .qkv_blocks = 0,
                .parts = 0,
                .shares = 1,
                .x = x,
                .rows = a.rows,
                .tickets = a.tickets,
                .ticket_count = gdn_tickets(a)};
  if (a.rows > kMostRows || p.ba.format != WeightFormat::kBf16 || p.qkv.format != p.z.format) return 0;
  if (gdn_decodes(a) && a.rows <= kGdnHalfRows && p.qkv.cols > tiles::kStepK)
    p.shares = 2;  // blocks that are alone on their multiprocessor take as long as two
  if (p.qkv.format == WeightFormat::kBf16) return project_together<tiles::Bf16>(p, on);
  if (p.qkv.format == WeightFormat::kFp8) return project_together<tiles::Fp8>(p, on);
  return project_together<tiles::Nvfp4>(p, on);
}

bool gdn_output_tiles(const GdnRecurrent& a, const GdnWeights& weights, float* partial, void* stream) {
  if (a.rows <= kGdnFewRows || a.rows > kMostRows) return false;
  const auto on = static_cast<cudaStream_t>(stream);
  const Output p{.weight = view_of(weights.out), .core = a.core, .y = nullptr, .rows = a.rows, .splits = 1};
  if (p.weight.format == WeightFormat::kBf16)
    output_of<tiles::Bf16>(p, partial, a.parts, on);
  else if (p.weight.format == WeightFormat::kFp8)
    output_of<tiles::Fp8>(p, partial, a.parts, on);
  else
    output_of<tiles::Nvfp4>(p, partial, a.parts, on);
  return true;
}

}  // namespace mettle::cuda
