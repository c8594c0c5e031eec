// moe's kernels of one row and of up to 16 rows as they stand in src/ops/cuda, on a CPU (block.h): three blocks that
// wait for each other, on a thread each, through the cases of the proof.
#include <gtest/gtest.h>

#include "cuda_runtime.h"
#include "moe_proof.h"
#include "ops/cuda/moe_few_rows_scratch.h"
#include "ops/cuda/moe_fused_rows.h"

namespace mettle {
namespace cuda {

void moe_few_rows(const MoeArgs& a, CUstream_st*) { FAIL() << a.rows << " rows go another way"; }  // not modelled

}  // namespace cuda

namespace {

void prove(void (*kernel)(const MoeArgs&, CUstream_st*), const MoeProblem& p, int most_rows, int budget) {
  modelled::prove({.run = [kernel](const MoeArgs& a) { kernel(a, nullptr); },
                   .workspace =
                       [](const MoeProblem& problem, int rows) {
                         size_t bytes = 0;
                         cuda::carve_moe_few_rows(problem, rows, nullptr, &bytes);
                         return bytes;
                       },
                   .most_rows = most_rows,
                   .comparisons = most_rows == 1 ? 1'000u : 2'000u},
                  p, budget);
}

// Units of two tiles whose columns end inside, tile rows that do not fill the blocks, more experts than are chosen.
const MoeProblem kSmall = {
    .hidden = 512, .experts = 20, .top_k = 3, .width = 48, .shared_width = 48, .shared_gate = true};
TEST(ModelledFusedMoe, SmallExpertsPassTheProof) { prove(cuda::moe_fused_rows, kSmall, 16, 60); }

// Several units of eight tiles in both products, weights of routes that are not divided by their sum.
const MoeProblem kLarger = {.hidden = 1024, .experts = 5, .top_k = 2, .width = 1024, .renormalise = false};
TEST(ModelledFusedMoe, LargerUnitsPassTheProof) { prove(cuda::moe_fused_rows, kLarger, 8, 12); }

// A single row; several units of gate_up.
const MoeProblem kOne = {
    .hidden = 2048, .experts = 20, .top_k = 2, .width = 144, .shared_width = 144, .shared_gate = true};
TEST(ModelledFusedMoe, OneRowPassesTheProof) {
  prove(cuda::moe_fused_small, kSmall, 1, 60);
  prove(cuda::moe_fused_small, kOne, 1, 60);
}

}  // namespace
}  // namespace mettle
