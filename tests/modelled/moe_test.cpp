// moe's CUDA kernels of up to 16 rows an expert as they stand in src/ops/cuda, on a CPU (block.h), through the cases of
// the proof. The router's product is plain code here.
#include <gtest/gtest.h>

#include "cuda_runtime.h"
#include "moe_proof.h"
#include "ops/cuda/moe_tiles.h"
#include "ops/cuda/moe_tiles_scratch.h"
#include "ops/cuda/wgmma_tiles.h"

namespace mettle {
namespace cuda {

void model_direct_memory();

// Not modelled.
void mma_tiles(const MmaTilesArgs&) { FAIL() << "mma"; }
void wgmma_tiles(const MmaTilesArgs&) { FAIL() << "wgmma"; }
void moe_stream(const MmaTilesArgs&) { FAIL() << "stream"; }
void moe_wide(const MmaTilesArgs&) { FAIL() << "wide"; }
void moe_wide_order(const uint16_t*, int, int, uint16_t*, CUstream_st*) { FAIL() << "wide"; }

}  // namespace cuda

namespace {

void prove(const MoeProblem& p, int budget) {
  cuda::model_direct_memory();
  modelled::prove({.run = [](const MoeArgs& a) { cuda::moe_tiles(a, cuda::TileEngine::kDirect, nullptr); },
                   .workspace =
                       [](const MoeProblem& problem, int rows) {
                         size_t bytes = 0;
                         cuda::carve_moe_tiles(problem, rows, nullptr, &bytes);
                         return bytes;
                       }},
                  p, budget);
}

// Units of two tiles whose columns end inside, tile rows that are not a whole pair, a shared expert that rides; more
// groups a block than have a place.
const MoeProblem kSmall = {
    .hidden = 144, .experts = 6, .top_k = 2, .width = 48, .shared_width = 48, .shared_gate = true};
TEST(ModelledMoe, SmallExpertsPassTheProof) { prove(kSmall, 90); }

// Units of eight and four tiles, several of them; a shared expert that stands alone.
const MoeProblem kLarger = {.hidden = 1024, .experts = 3, .top_k = 1, .width = 256, .shared_width = 32};
TEST(ModelledMoe, LargerUnitsPassTheProof) { prove(kLarger, 20); }

}  // namespace
}  // namespace mettle
