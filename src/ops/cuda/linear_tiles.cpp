// linear, CUDA "tiles": many rows. See mma_tiles.h and wgmma_tiles.h.
#include "ops/cuda/linear_support.h"
#include "ops/cuda/mma_tiles.h"
#include "ops/cuda/wgmma_tiles.h"

namespace mettle {
namespace {

#if METTLE_CUDA
void run(const Tactic& tactic, const LinearArgs& a, Stream& stream) {
  const auto engine = static_cast<cuda::TileEngine>(tactic.variant);
  cuda::MmaTilesArgs args = {.weight = cuda::view_of(*a.weight),
                             .x = a.x.as<uint16_t>(),
                             .rows = a.rows,
                             .y = a.y.as<float>(),
                             .stream = static_cast<CUstream_st*>(stream.cuda)};
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
    .tactics = [](const LinearProblem&, const Device& device) { return cuda::tile_tactics(device); },
    .workspace = [](const Tactic&, const LinearProblem&, int, int) { return size_t{0}; },
#if METTLE_CUDA
    .run = run,
#endif
};

}  // namespace mettle
