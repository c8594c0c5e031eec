// linear, CUDA "tiles": many rows. See mma_tiles.h, wgmma_tiles.h and linear_bulk.h.
#include "ops/cpu/reference_math.h"
#include "ops/cuda/linear_bulk.h"
#include "ops/cuda/linear_support.h"
#include "ops/cuda/mma_tiles.h"
#include "ops/cuda/wgmma_tiles.h"

namespace mettle {
namespace {

constexpr int kBulk = static_cast<int>(cuda::TileEngine::kDirect) + 1;  // variant beside those of TileEngine

#if METTLE_CUDA
void run(const Tactic& tactic, const LinearArgs& a, Stream& stream) {
  const auto engine = static_cast<cuda::TileEngine>(tactic.variant);
  cuda::MmaTilesArgs args = {.weight = cuda::view_of(*a.weight),
                             .x = a.x.as<uint16_t>(),
                             .rows = a.rows,
                             .y = a.y.as<float>(),
                             .stream = static_cast<CUstream_st*>(stream.cuda)};
  if (tactic.variant == kBulk) {
    reference::Carver carver(a.ws);
    return cuda::linear_bulk(args, cuda::linear_bulk_scratch(carver, args.rows, args.weight.cols));
  }
  args.block_rows = cuda::tiles_block_rows(args.weight, a.rows, engine);
  (engine == cuda::TileEngine::kWgmma ? cuda::wgmma_tiles : cuda::mma_tiles)(args);
}
#endif

}  // namespace

extern const Backend<LinearOp> linear_cuda_tiles;
const Backend<LinearOp> linear_cuda_tiles = {
    .name = "tiles",
    .numerics = {},
    .layout = Layout::kP64,
    .kind = DeviceKind::kCuda,
    .supports = cuda_linear,
    .tactics =
        [](const LinearProblem&, const Device& device) {
          std::vector<Tactic> all = cuda::tile_tactics(device);
          if (cuda::bulk_built(device)) all.push_back({.name = "bulk", .variant = kBulk});
          return all;
        },
    .workspace =
        [](const Tactic& tactic, const LinearProblem& p, int rows, int) {
          reference::Carver carver({});
          if (tactic.variant == kBulk) cuda::linear_bulk_scratch(carver, rows, p.in);
          return carver.used();
        },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle
