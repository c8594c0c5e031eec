// The three projections of gdn: in one launch, since the small ones would each cost a start and an end of their own and
// none of them fills a GPU; for at most 16 rows here, for more in gdn_project_tiles.cu. Formats and shapes that neither
// takes: one product after the other.
#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/gdn_recurrent.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/p64_view.h"
#include "ops/cuda/product.h"

namespace mettle::cuda {
namespace {

constexpr int kWarps = 8;

struct Projections {
  P64View qkv, z, ba;
  float *qkv_out, *z_out, *ba_out;
  int qkv_blocks;
  const uint16_t* x;
  int rows;
  int32_t* tickets;
  int ticket_count;
};

// 8 / SPLIT tiles of 16 matrix rows; SPLIT warps share one along k and are summed in order.
template <class W, int NT, int SPLIT, bool MANY>
__device__ __forceinline__ void project(const P64View& w, const uint16_t* x, float* y, int rows, int block,
                                        float4 (*partial)[NT][32]) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32), g = lane / 4,
            t = lane % 4;
  const int part = warp % SPLIT, tile = block * (kWarps / SPLIT) + warp / SPLIT;
  const bool active = tile < w.tiles;
  const int row0 = tile * 16 + g;
  const float scale0 = active ? w.row_scale[row0] * W::kOut : 0.f,
              scale1 = active ? w.row_scale[row0 + 8] * W::kOut : 0.f;
  float c[NT][4] = {};
  const uint16_t* row[NT];
  bool ok[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    ok[n] = active && g + 8 * n < rows;
    row[n] = x + int64_t{g + 8 * n} * w.cols;
  }
  const uint8_t* payload = w.payload + int64_t{tile} * w.units * W::kBytes;
  if constexpr (MANY) {
    p64::stream_tile_row<W, NT, true>(c, payload, w.units, part, SPLIT, w.cols, row, ok, lane, active, true);
  } else {  // one after the other: one in all, but for the few blocks of ba
    for (int u = part; u < w.units; u += SPLIT)
      p64::stream_tile_row<W, NT, false>(c, payload, w.units, u, SPLIT, w.cols, row, ok, lane, active, true);
  }
#pragma unroll
  for (int n = 0; n < NT; ++n) partial[warp][n][lane] = make_float4(c[n][0], c[n][1], c[n][2], c[n][3]);
  __syncthreads();
  if (part != 0 || !active) return;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int p = 1; p < SPLIT; ++p) {
      const float4 v = partial[warp + p][n][lane];
      c[n][0] += v.x, c[n][1] += v.y, c[n][2] += v.z, c[n][3] += v.w;
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int m = 8 * n + 2 * t + (q & 1), r = row0 + 8 * (q >> 1);
      if (m < rows && r < w.rows) y[int64_t{m} * w.rows + r] = c[n][q] * (q < 2 ? scale0 : scale1);
    }
  }
}

// Blocks of ba (bf16), which take the longest, then of qkv, then of z.
template <class W, int NT, int SPLIT, bool MANY>
__global__ __launch_bounds__(kWarps * 32, NT == 1 && !MANY ? 3 : 2) void gdn_project_kernel(Projections p) {
  __shared__ float4 partial[kWarps][NT][32];
  const int block = static_cast<int>(blockIdx.x), rest = block - p.ba.tiles;
  ptx::trigger();
  if (rest < 0) {
    project<p64::Bf16Stream, NT, kWarps, false>(p.ba, p.x, p.ba_out, p.rows, block, partial);
    if (block > 0) return;
    ptx::wait();  // warps without a share of k have not
    for (int i = static_cast<int>(threadIdx.x); i < p.ticket_count; i += kWarps * 32) p.tickets[i] = 0;
    return;
  }
  const bool is_z = rest >= p.qkv_blocks;
  project<W, NT, SPLIT, MANY>(is_z ? p.z : p.qkv, p.x, is_z ? p.z_out : p.qkv_out, p.rows,
                              is_z ? rest - p.qkv_blocks : rest, partial);
}

template <class W, int NT>
void launch_projections(Projections p, cudaStream_t stream) {
  const auto go = [&](auto split, auto many) {
    constexpr int kSplit = decltype(split)::value, kTiles = kWarps / kSplit;
    p.qkv_blocks = (p.qkv.tiles + kTiles - 1) / kTiles;
    const int z_blocks = (p.z.tiles + kTiles - 1) / kTiles;
    launch({.grid = dim3(static_cast<unsigned>(p.ba.tiles + p.qkv_blocks + z_blocks)),
            .block = dim3(kWarps * 32),
            .stream = stream},
           gdn_project_kernel<W, NT, kSplit, decltype(many)::value>, p);
  };
  if (p.qkv.units > 8) return go(std::integral_constant<int, 8>{}, std::true_type{});
  if (p.qkv.units > 4) return go(std::integral_constant<int, 8>{}, std::false_type{});
  go(std::integral_constant<int, 4>{}, std::false_type{});
}

template <class W>
bool project_together(const Projections& p, cudaStream_t stream) {
  p.rows <= 8 ? launch_projections<W, 1>(p, stream) : launch_projections<W, 2>(p, stream);
  return true;
}

}  // namespace

bool gdn_project_few(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  const Projections p{.qkv = view_of(weights.qkv),
                      .z = view_of(weights.z),
                      .ba = view_of(weights.ba),
                      .qkv_out = a.qkv,
                      .z_out = a.z,
                      .ba_out = a.ba,
                      .x = x,
                      .rows = a.rows,
                      .tickets = a.tickets,
                      .ticket_count = gdn_tickets(a)};
  if (a.rows > kGdnFewRows || p.ba.format != WeightFormat::kBf16 || p.qkv.format != p.z.format) return false;
  if (p.qkv.format == WeightFormat::kBf16) return project_together<p64::Bf16Stream>(p, on);
  if (p.qkv.format == WeightFormat::kFp8) return project_together<p64::Fp8Stream>(p, on);
  return p.qkv.unit_tiles == 8 && project_together<p64::Nvfp4Stream<8>>(p, on);
}

void gdn_project(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, void* stream) {
  if (gdn_project_few(a, weights, x, stream) || gdn_project_tiles(a, weights, x, stream)) return;
  const auto on = static_cast<cudaStream_t>(stream);
  if (gdn_tickets(a) > 0) gdn_clear(a, stream);
  product(weights.qkv, x, a.rows, a.qkv, on);
  product(weights.z, x, a.rows, a.z, on);
  product(weights.ba, x, a.rows, a.ba, on);
}

}  // namespace mettle::cuda
