// moe's CUDA kernels of up to 16 rows an expert as they stand in src/ops/cuda, on a CPU (block.h), through the cases of
// the proof. The router's product is plain code here.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "block.h"
#include "cuda_runtime.h"
#include "moe_proof.h"
#include "ops/cuda/moe_tiles.h"
#include "ops/cuda/moe_tiles_scratch.h"
#include "ops/cuda/wgmma_tiles.h"
#include "ops/moe_cases.h"

namespace mettle {
namespace cuda {

void model_direct_memory();

// Not modelled; what `mma` is called with can be looked at.
std::function<void(const MmaTilesArgs&)> on_mma = [](const MmaTilesArgs&) { FAIL() << "mma"; };
void mma_tiles(const MmaTilesArgs& a) { on_mma(a); }
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

// Pairs of a row and its choice, of one row or more than the block's threads take at once; some experts are not here.
// Every pair has a place of its own in a group of its expert.
void group(int rows, bool given) {
  const MoeProblem p = {.hidden = 32, .experts = 16, .top_k = 8, .width = 16, .shared_width = 16};
  const MoeCase c = moe_typical_case(p, rows, 1, Layout::kP64);
  std::vector<int32_t> ids(static_cast<size_t>(rows) * 8, -1);
  std::vector<float> weights(ids.size(), 0.125f), partial(static_cast<size_t>(rows) * 32);
  for (size_t i = 0; given && i < ids.size(); ++i) ids[i] = i % 5 == 0 ? -1 : static_cast<int32_t>(i * 7 % 13);
  size_t bytes = 0;
  cuda::carve_moe_tiles(p, rows, nullptr, &bytes);
  std::vector<uint8_t> ws(bytes + 256);
  uint8_t* const aligned = ws.data() + (256 - reinterpret_cast<uintptr_t>(ws.data()) % 256) % 256;
  const cuda::MoeTilesScratch s = cuda::carve_moe_tiles(p, rows, aligned);
  int calls = 0;
  cuda::on_mma = [&](const cuda::MmaTilesArgs& a) {
    if (calls++ > 0) return;  // gate_up and down have the same groups
    const ExpertPointers* pointers = c.weights->packed.pointers;
    std::map<int32_t, const uint8_t*> at;  // position: matrix of its group
    for (int g = 0; g < *a.groups.count; ++g) {
      const cuda::RowGroup& of = a.groups.group[g];
      EXPECT_TRUE(of.count >= 1 && of.count <= a.block_rows);
      for (int i = 0; i < of.count; ++i)
        EXPECT_TRUE(at.emplace(of.first + i, of.weights.gate_up).second) << of.first + i;
    }
    size_t there = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const int32_t place = s.position[i];
      if (ids[i] < 0) {
        EXPECT_EQ(place, -1);
        continue;
      }
      ++there;
      ASSERT_TRUE(at.contains(place)) << place;
      ASSERT_EQ(a.groups.row_of[place], static_cast<int32_t>(i / 8)) << i;
      EXPECT_EQ(at[place], pointers[ids[i]].gate_up);
      at.erase(place);
    }
    EXPECT_EQ(there, given ? ids.size() - (ids.size() + 4) / 5 : ids.size());
    EXPECT_EQ(at.size(), static_cast<size_t>(rows));  // of the shared expert
    for (const auto& [place, matrix] : at) EXPECT_EQ(a.groups.row_of[place], place - rows * 8);
  };
  modelled::set_order(1);
  cuda::moe_tiles({p,
                   rows,
                   c.x.view(),
                   &c.weights->packed,
                   {partial.data(), DType::kF32, {rows, 32}},
                   {given, ids.data(), weights.data()},
                   {aligned, bytes}},
                  cuda::TileEngine::kMma, nullptr);
  EXPECT_EQ(calls, 2);
  cuda::on_mma = [](const cuda::MmaTilesArgs&) { FAIL() << "mma"; };
}
TEST(ModelledMoe, EveryPairHasAPlaceInAGroupOfItsExpert) {
  group(1, false);
  group(8, false);  // the last number of rows whose choices are made by the block that groups them
  group(8, true);
  group(9, false);
  group(33, true);
  group(1100, false);  // 8,800 pairs: more than its threads take at once
  group(1100, true);
}

}  // namespace
}  // namespace mettle
