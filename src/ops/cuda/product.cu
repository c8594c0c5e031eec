// See product.h, mma_tiles.h and wgmma_tiles.h.
#include "ops/cuda/product.h"

#include "ops/cuda/linear_mma.h"
#include "ops/cuda/mma_tiles.h"
#include "ops/cuda/wgmma_tiles.h"
#include "tensor/gpu_check.h"

namespace mettle::cuda {
namespace {

constexpr int kFewRowsInOnePass = 32;
constexpr int kNarrowRows = 256;  // of a narrow matrix that passes of few rows take

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

}  // namespace

void mma_tiles(const MmaTilesArgs& args) {
  if (args.weight.format == WeightFormat::kNvfp4) return mma_tiles_nvfp4(args);
  if (args.weight.format == WeightFormat::kFp8) return mma_tiles_fp8(args);
  mma_tiles_bf16(args);
}

void wgmma_tiles(const MmaTilesArgs& args) {
  if (args.weight.format == WeightFormat::kNvfp4) return wgmma_tiles_nvfp4(args);
  if (args.weight.format == WeightFormat::kFp8) return wgmma_tiles_fp8(args);
  wgmma_tiles_bf16(args);
}

int tiles_block_rows(const P64View& weight, int rows, TileEngine engine) {
  const int multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  const int least = engine == TileEngine::kWgmma ? 64 : 32;
  // 128 rows of BF16 weights and of x need more shared memory for mma than some GPUs have.
  const bool wide =
      weight.format != WeightFormat::kBf16 || attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= 132 * 1024;
  const int most = engine == TileEngine::kWgmma ? 256 : wide ? 128 : 64;
  const int blocks = (weight.tiles + 7) / 8;
  for (int n = most; n > least; n /= 2)
    if (rows > n / 2 && blocks * ((rows + n - 1) / n) >= multiprocessors) return n;
  return least;
}

void product(const PackedMatrix& w, const uint16_t* x, int rows, float* y, CUstream_st* stream) {
  const P64View view = view_of(w);
  // Tiles do not split k: a narrow matrix leaves most of the GPU idle, while passes of few rows do not.
  const int tiles = (view.tiles + 7) / 8 * ((rows + 31) / 32);
  const bool narrow = rows <= kNarrowRows && 2 * tiles < attribute(cudaDevAttrMultiProcessorCount);
  if (rows <= kFewRowsInOnePass || narrow)
    return linear_mma({.weight = view, .x = x, .y = y, .rows = rows, .stream = stream});
  const bool wgmma = wgmma_built() && attribute(cudaDevAttrComputeCapabilityMajor) == 9;
  const TileEngine engine = wgmma ? TileEngine::kWgmma : TileEngine::kMma;
  (wgmma ? wgmma_tiles : mma_tiles)({.weight = view,
                                     .x = x,
                                     .rows = rows,
                                     .y = y,
                                     .block_rows = tiles_block_rows(view, rows, engine),
                                     .stream = stream});
}

}  // namespace mettle::cuda
