// linear by linear_bulk.cu, as it stands in src/ops/cuda, on a CPU (block.h), through the cases of the proof and beside
// plain products of matrices that several pieces of a block cover: the modelled GPU has three multiprocessors.
#include <gtest/gtest.h>

#include "cuda_runtime.h"
#include "ops/cpu/reference_math.h"
#include "ops/cuda/linear_bulk.h"
#include "ops/linear_cases.h"
#include "ops/oracle.h"
#include "p64_product.h"
#include "prove/trial.h"

namespace mettle {
namespace cuda {

void model_linear_bulk_memory();

}  // namespace cuda

namespace {

std::vector<uint8_t> launch(const LinearProblem& p, const PackedMatrix& weight, const CaseInput& x, int rows, int pass,
                            Examination* examination) {
  modelled::set_order(static_cast<uint64_t>(rows + pass));
  cuda::model_linear_bulk_memory();
  Guarded y("y", {rows, p.out}, DType::kF32);
  y.prefill(pass);
  reference::Carver count({});
  cuda::linear_bulk_scratch(count, rows, p.in);
  GuardedWorkspace ws(count.used());
  reference::Carver carver(ws.arm());
  cuda::linear_bulk(
      {.weight = cuda::view_of(weight), .x = x.view().as<uint16_t>(), .rows = rows, .y = y.view().as<float>()},
      cuda::linear_bulk_scratch(carver, rows, p.in));
  if (examination != nullptr) {
    examination->demand(y.check());
    examination->demand(ws.check());
  }
  return y.copy();
}

std::vector<float> floats(const std::vector<uint8_t>& bytes) {
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

void prove(const LinearProblem& p, int budget) {
  ThreadTeam team(1);
  ProofEntry entry;
  Examination examination(entry);
  try {
    for (const LinearCase& c : linear_cases(p, 1, budget)) {
      examination.begin(c.kind);
      const PackedMatrix weight = c.weight->packed(Layout::kP64);
      const std::vector<uint8_t> first = launch(p, weight, c.x, c.rows, 0, &examination);
      const std::vector<int> rows = iota_rows(c.rows);
      const Expected expected = expect_rows(team, rows, [&](std::span<const int> some) {
        return oracle::linear(p, c.weight->raw, c.x.view(), some, {.exact = c.exact});
      });
      if (c.exact)
        examination.judge_exact("y", expected, floats(first), rows);
      else
        examination.judge_elements("y", expected, floats(first), rows);
      if (!c.generic || c.rows < 2) continue;
      CaseInput beside = c.x.copy();
      for (int r = 1; r < c.rows; r += 2) beside.fill_row_nan(r);
      examination.judge_same(VerdictCode::kRowDependent, "y", first, launch(p, weight, beside, c.rows, 1, nullptr),
                             int64_t{p.out} * 4, 2);
    }
    EXPECT_GT(entry.comparisons, 2'000u);
    EXPECT_LT(entry.max_error, 4);
  } catch (const ProofFailure& failure) {
    ADD_FAILURE() << p.text() << ": " << name_of(failure.verdict.code) << " " << failure.verdict.sentence;
  }
}

TEST(ModelledLinearBulk, PassesTheCasesOfTheProof) {
  prove({.in = 1024, .out = 152, .format = WeightFormat::kNvfp4}, 100);
  prove({.in = 272, .out = 40, .format = WeightFormat::kNvfp4}, 90);
  prove({.in = 512, .out = 72, .format = WeightFormat::kFp8}, 60);
  prove({.in = 144, .out = 57, .format = WeightFormat::kBf16}, 60);
}

// Sums of these cases are exact: whatever is not equal is wrong.
void compare(WeightFormat format, int in, int out, int rows) {
  SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(in) + " to " + std::to_string(out));
  const LinearProblem p{.in = in, .out = out, .format = format};
  const std::vector<LinearCase> cases = linear_cases(p, 2, 8);
  const auto exact = std::find_if(cases.begin(), cases.end(), [](const LinearCase& c) { return c.exact; });
  const PackedMatrix weight = exact->weight->packed(Layout::kP64);
  CaseInput x(rows, in, DType::kBF16);
  CaseRandom random(3);
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < in; ++k) x.set(r, k, random.below(3) - 1);
  std::vector<float> plain(static_cast<size_t>(rows * out));
  modelled::p64_product(weight, x.view().as<uint16_t>(), rows, plain.data());
  EXPECT_EQ(floats(launch(p, weight, x, rows, 0, nullptr)), plain);
}

TEST(ModelledLinearBulk, BlocksTakePieceAfterPiece) {
  compare(WeightFormat::kNvfp4, 512, 16 * 8 * 13 + 24, 18);  // 14 pieces, 6 blocks
  compare(WeightFormat::kNvfp4, 1024, 16 * 8 * 6 + 100, 33);
  compare(WeightFormat::kNvfp4, 256, 16 * 8 * 6 + 8, 70);  // 7 pieces, 3 blocks
  compare(WeightFormat::kNvfp4, 128, 16 * 8 * 4 + 1, 131);
  compare(WeightFormat::kFp8, 256, 16 * 8 * 7, 5);
  compare(WeightFormat::kBf16, 128, 16 * 8 * 3 + 30, 129);
}

TEST(ModelledLinearBulk, MoreRowsTakeMorePasses) {
  compare(WeightFormat::kNvfp4, 128, 136, 257);
  compare(WeightFormat::kNvfp4, 64 * 3, 24, 580);
}

}  // namespace
}  // namespace mettle
