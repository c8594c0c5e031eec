// What the CUDA references say of problems and devices: host code of every build.
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/gdn.h"
#include "ops/linear.h"
#include "ops/moe.h"

namespace mettle {
namespace {

template <class Op>
const Backend<Op>& reference() {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->kind == DeviceKind::kCuda && b->name == "reference") return *b;
  throw std::runtime_error("no CUDA reference");
}

Device gpu(int sm) { return {.kind = DeviceKind::kCuda, .name = "sm" + std::to_string(sm), .sm = sm}; }

template <class Op>
void expect(VerdictCode code, const typename Op::Problem& p, const Device& device = gpu(90)) {
  const Verdict v = reference<Op>().supports(p, device);
  EXPECT_EQ(name_of(v.code), name_of(code)) << p.text() << ": " << v.have << ", " << v.need;
}

// OK where its code is in this program.
template <class Op>
void expect_served(const typename Op::Problem& p) {
  const bool built = reference<Op>().run != nullptr;
  expect<Op>(built ? VerdictCode::kOk : VerdictCode::kNotBuilt, p);
  expect<Op>(VerdictCode::kWrongSm, p, gpu(75));
  expect<Op>(VerdictCode::kWrongSm, p, Device{});
  EXPECT_EQ(reference<Op>().layout, Layout::kP64);
  const std::vector<Tactic> tactics = reference<Op>().tactics(p, gpu(90));
  ASSERT_EQ(tactics.size(), 1u);
  EXPECT_EQ(tactics.front().name, "plain");
}

constexpr auto kShape = VerdictCode::kShapeUnsupported;
constexpr auto kFormat = VerdictCode::kFormatUnsupported;

TEST(CudaReference, LinearTakesWhatP64Holds) {
  for (const WeightFormat f : {WeightFormat::kNvfp4, WeightFormat::kBf16, WeightFormat::kFp8})
    expect_served<LinearOp>({.in = 16, .out = 3, .format = f});
  expect<LinearOp>(kShape, {.in = 24, .out = 3});
  expect<LinearOp>(kFormat, {.in = 256, .out = 3, .format = WeightFormat::kFp8Block});
  expect<LinearOp>(kFormat, {.in = 256, .out = 3, .format = WeightFormat::kF32});
  expect<LinearOp>(kFormat, {.in = 256, .out = 3, .activation = Activation::kF32});
}

TEST(CudaReference, MoeRefusesByTheMatrixThatDoesNotFit) {
  const MoeProblem good = {.hidden = 80, .experts = 10, .top_k = 9, .width = 48, .shared_width = 16};
  expect_served<MoeOp>(good);
  MoeProblem p = good;
  p.top_k = 11;
  expect<MoeOp>(kShape, p);
  p = good, p.width = 40;
  expect<MoeOp>(kShape, p);
  p = good, p.shared_width = 8;
  expect<MoeOp>(kShape, p);
  p = good, p.hidden = 72;
  expect<MoeOp>(kShape, p);
  p = good, p.router_format = WeightFormat::kF32;
  expect<MoeOp>(kFormat, p);
  p = good, p.shared_format = WeightFormat::kFp8Block;
  expect<MoeOp>(kFormat, p);
  p.shared_width = 0;  // then its format does not matter
  expect_served<MoeOp>(p);
}

TEST(CudaReference, AttentionTakesHeadsUpTo256) {
  const AttentionProblem good = {.hidden = 256, .heads = 3, .kv_heads = 1, .head_dim = 256, .rotary_dim = 64};
  expect_served<AttentionOp>(good);
  AttentionProblem p = good;
  p.head_dim = 272;
  expect<AttentionOp>(kShape, p);
  p = good, p.kv_heads = 2;
  expect<AttentionOp>(kShape, p);
  p = good, p.rotary_dim = 63;
  expect<AttentionOp>(kShape, p);
  p = good, p.heads = 1, p.head_dim = 24, p.rotary_dim = 8;  // the output projection has 24 columns
  expect<AttentionOp>(kShape, p);
}

TEST(CudaReference, GdnTakesAnyHeads) {
  const GdnProblem good = {.hidden = 96, .key_heads = 1, .value_heads = 3, .dk = 20, .dv = 48};
  expect_served<GdnOp>(good);
  GdnProblem p = good;
  p.key_heads = 2;
  expect<GdnOp>(kShape, p);
  p = good, p.dv = 40;
  expect<GdnOp>(kShape, p);
  p = good, p.ba_format = WeightFormat::kFp8Block;
  expect<GdnOp>(kFormat, p);
}

TEST(CudaReference, WorkspaceGrowsWithTheRows) {
  const MoeProblem moe = {.hidden = 80, .experts = 10, .top_k = 9, .width = 48, .shared_width = 16};
  const AttentionProblem attention = {.hidden = 256, .heads = 4, .kv_heads = 2, .head_dim = 64, .rotary_dim = 16};
  const GdnProblem gdn = {.hidden = 96, .key_heads = 1, .value_heads = 3, .dk = 20, .dv = 48};
  const auto expect_growth = [](const auto& backend, const auto& p) {
    const Tactic plain{.name = "plain"};
    EXPECT_GT(backend.workspace(plain, p, 1, 1), 0u);
    EXPECT_GE(backend.workspace(plain, p, 512, 1), 256 * backend.workspace(plain, p, 1, 1));
  };
  expect_growth(reference<MoeOp>(), moe);
  expect_growth(reference<AttentionOp>(), attention);
  expect_growth(reference<GdnOp>(), gdn);
}

}  // namespace
}  // namespace mettle
