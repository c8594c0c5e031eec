// moe's CUDA kernels of up to 16 rows an expert as they stand in src/ops/cuda, on a CPU (block.h), through the cases of
// the proof, judged by its oracle under the routing that the kernels chose. The router's product is plain code here.
#include <gtest/gtest.h>

#include "cuda_runtime.h"
#include "ops/cuda/moe_tiles.h"
#include "ops/cuda/moe_tiles_scratch.h"
#include "ops/cuda/wgmma_tiles.h"
#include "ops/moe_cases.h"
#include "ops/oracle.h"
#include "prove/trial.h"

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

struct Launched {
  std::vector<uint8_t> partial, ids, weights;
};

Launched launch(const MoeProblem& p, const MoeCase& c, const CaseInput& x, const Launched* given, int pass,
                Examination& examination) {
  Guarded partial("partial", {c.rows, p.hidden}, DType::kF32);
  Guarded ids("ids", {c.rows, p.top_k}, DType::kI32), weights("weights", {c.rows, p.top_k}, DType::kF32);
  for (Guarded* g : {&partial, &ids, &weights}) g->prefill(pass);
  if (given != nullptr) {
    std::memcpy(ids.body(), given->ids.data(), ids.bytes());
    std::memcpy(weights.body(), given->weights.data(), weights.bytes());
  }
  size_t bytes = 0;
  cuda::carve_moe_tiles(p, c.rows, nullptr, &bytes);
  GuardedWorkspace ws(bytes);
  cuda::moe_tiles({p,
                   c.rows,
                   x.view(),
                   &c.weights->packed,
                   partial.view(),
                   {given != nullptr, ids.view().as<int32_t>(), weights.view().as<float>()},
                   ws.arm()},
                  cuda::TileEngine::kDirect, nullptr);
  examination.demand(pass == 0 ? partial.check() : partial.check_guards());
  examination.demand(ids.check_guards());
  examination.demand(ws.check());
  return {partial.copy(), ids.copy(), weights.copy()};
}

std::vector<float> floats(const std::vector<uint8_t>& bytes) {
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

void prove(const MoeProblem& p, int budget) {
  ThreadTeam team(1);
  ProofEntry entry;
  Examination examination(entry);
  cuda::model_direct_memory();
  try {
    for (const MoeCase& c : moe_cases(p, 1, budget, Layout::kP64)) {
      modelled::set_order(static_cast<uint64_t>(c.rows));
      examination.begin(c.kind);
      const oracle::Options options{.numerics = {.h = Rounds::kBf16}, .exact = c.exact};
      Launched given;
      if (!c.given.empty()) {
        given.ids.resize(c.given.size() * 4);
        std::memcpy(given.ids.data(), c.given.data(), given.ids.size());
        const auto weights =
            oracle::route(p, c.weights->raw, c.x.view(), iota_rows(c.rows), c.given.data(), options).weights;
        const std::vector<float> narrow(weights.value.begin(), weights.value.end());
        given.weights.resize(narrow.size() * 4);
        std::memcpy(given.weights.data(), narrow.data(), given.weights.size());
      }
      const Launched first = launch(p, c, c.x, c.given.empty() ? nullptr : &given, 0, examination);
      const auto* ids = reinterpret_cast<const int32_t*>(first.ids.data());
      const Expected expected = oracle::moe(p, c.weights->raw, c.x.view(), iota_rows(c.rows), ids, options);
      if (c.exact)
        examination.judge_exact("partial", expected, floats(first.partial));
      else
        examination.judge_elements("partial", expected, floats(first.partial));
      if (!c.generic || c.rows < 2 || !c.given.empty()) continue;
      CaseInput beside = c.x.copy();
      for (int r = 1; r < c.rows; r += 2) beside.fill_row_nan(r);
      const Launched same_routes = launch(p, c, beside, &first, 1, examination);
      examination.judge_same(VerdictCode::kRowDependent, "partial", first.partial, same_routes.partial,
                             int64_t{p.hidden} * 4, 2);
    }
    EXPECT_GT(entry.comparisons, 2'000u);
    EXPECT_LT(entry.max_error, 4);
  } catch (const ProofFailure& f) {
    ADD_FAILURE() << p.text() << ": " << name_of(f.verdict.code) << " " << f.verdict.sentence;
  }
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
