// The three projections of gdn: in one launch, since the small ones would each cost a start and an end of their own and
// none of them fills a GPU; for at most 16 rows here, for more in gdn_project_tiles.cu. Formats and shapes that neither
// takes: one product after the other.
#include "ops/cuda/device/gdn_few_rows.cuh"
#include "ops/cuda/gdn_recurrent.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/p64_view.h"
#include "ops/cuda/product.h"

namespace mettle::cuda {
namespace {

struct Projections {
  P64View qkv, z, ba;
  float *qkv_out, *z_out, *ba_out;
  int qkv_blocks;
  const uint16_t* x;
  int rows;
  int32_t* tickets;
  int ticket_count;
};

// Blocks of ba (bf16), which take the longest, then of qkv, then of z.
template <class W, int NT, int SPLIT, bool MANY>
__global__ __launch_bounds__(kGdnWarps * 32, p64::stream_blocks(NT, MANY)) void gdn_project_kernel(Projections p) {
  __shared__ float4 partial[kGdnWarps][NT][32];
  const int block = static_cast<int>(blockIdx.x), rest = block - p.ba.tiles;
  ptx::trigger();
  if (rest < 0) {
    gdn_few_rows<p64::Bf16Stream, NT, kGdnWarps, false>(p.ba, p.x, p.ba_out, p.rows, block, partial);
    if (block > 0) return;
    ptx::wait();  // warps without a share of k have not
    for (int i = static_cast<int>(threadIdx.x); i < p.ticket_count; i += kGdnWarps * 32) p.tickets[i] = 0;
    return;
  }
  const bool is_z = rest >= p.qkv_blocks;
  gdn_few_rows<W, NT, SPLIT, MANY>(is_z ? p.z : p.qkv, p.x, is_z ? p.z_out : p.qkv_out, p.rows,
                                   is_z ? rest - p.qkv_blocks : rest, partial);
}

template <class W, int NT>
void launch_projections(Projections p, cudaStream_t stream) {
  const auto go = [&](auto split, auto many) {
    constexpr int kSplit = decltype(split)::value, kTiles = kGdnWarps / kSplit;
    p.qkv_blocks = (p.qkv.tiles + kTiles - 1) / kTiles;
    const int z_blocks = (p.z.tiles + kTiles - 1) / kTiles;
    launch({.grid = dim3(static_cast<unsigned>(p.ba.tiles + p.qkv_blocks + z_blocks)),
            .block = dim3(kGdnWarps * 32),
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

int gdn_project(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, void* stream) {
  if (gdn_project_few(a, weights, x, stream)) return 1;
  if (const int shares = gdn_project_tiles(a, weights, x, stream); shares > 0) return shares;
  const auto on = static_cast<cudaStream_t>(stream);
  if (gdn_tickets(a) > 0) gdn_clear(a, stream);
  product(weights.qkv, x, a.rows, a.qkv, on);
  product(weights.z, x, a.rows, a.z, on);
  product(weights.ba, x, a.rows, a.ba, on);
  return 1;
}

}  // namespace mettle::cuda
