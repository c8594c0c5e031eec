// moe, CUDA "tiles": many rows, grouped by expert. See moe_tiles.h.
#include "ops/cuda/moe_tiles.h"

#include <algorithm>

#include "ops/cuda/moe_support.h"
#include "ops/cuda/moe_tiles_scratch.h"

namespace mettle {
namespace {

// Experts of other formats are not written for `stream`, `direct` and `wide`.
std::vector<Tactic> tactics(const MoeProblem& p, const Device& device) {
  std::vector<Tactic> all = cuda::tile_tactics(device);
  if (p.format != WeightFormat::kNvfp4) return all;
  all.push_back({.name = "stream", .variant = static_cast<int>(cuda::TileEngine::kStream)});
  if (cuda::moe_direct_fits(std::max(p.hidden, p.width), device.shared_per_block))
    all.push_back({.name = "direct", .variant = static_cast<int>(cuda::TileEngine::kDirect)});
  if (cuda::moe_wide_takes(p, device.sm))
    all.push_back({.name = "wide", .variant = static_cast<int>(cuda::TileEngine::kWide)});
  return all;
}

size_t workspace(const Tactic&, const MoeProblem& p, int rows, int) {
  size_t bytes = 0;
  cuda::carve_moe_tiles(p, std::min(rows, cuda::kMoeTilesRows), nullptr, &bytes);
  return bytes;
}

#if METTLE_CUDA
void run(const Tactic& tactic, const MoeArgs& a, Stream& stream) {
  cuda::moe_tiles(a, static_cast<cuda::TileEngine>(tactic.variant), static_cast<CUstream_st*>(stream.cuda));
}
#endif

}  // namespace

extern const Backend<MoeOp> moe_cuda_tiles;
const Backend<MoeOp> moe_cuda_tiles = {
    .name = "tiles",
    .numerics = {.h = Rounds::kBf16},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = cuda_moe,
    .tactics = tactics,
    .workspace = workspace,
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle
