// What the fast CUDA backends of linear and moe say of a problem, and how they size what a launch covers: host code of
// every build.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "ops/cuda/moe_tiles_scratch.h"
#include "ops/cuda/support.h"
#include "ops/linear.h"

namespace mettle {
namespace {

using ::testing::HasSubstr;

Device gpu(int sm) {
  Device d;
  d.kind = DeviceKind::kCuda;
  d.sm = sm;
  d.name = "sm" + std::to_string(sm);
  return d;
}

template <class Op>
const Backend<Op>& cuda_backend(std::string_view name) {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->name == name && b->kind == DeviceKind::kCuda) return *b;
  throw std::runtime_error("no such backend");
}

MoeProblem moe() {
  return {.hidden = 2048, .experts = 256, .top_k = 8, .width = 512, .shared_width = 512, .shared_gate = true};
}

void expect_served(const Verdict& v) {
  if (kCudaBuilt)
    EXPECT_TRUE(v.ok()) << v.have << " " << v.need;
  else
    EXPECT_EQ(v.code, VerdictCode::kNotBuilt) << v.have << " " << v.need;
}
void expect_refused(const Verdict& v, VerdictCode code, const char* have, const char* need) {
  EXPECT_EQ(v.code, code) << v.have;
  EXPECT_THAT(v.have, HasSubstr(have));
  EXPECT_THAT(v.need, HasSubstr(need));
}

TEST(CudaProducts, LinearIsServedInEveryFormatThatP64Holds) {
  for (const char* name : {"mma", "tiles"}) {
    const auto& b = cuda_backend<LinearOp>(name);
    for (const WeightFormat f : {WeightFormat::kNvfp4, WeightFormat::kFp8, WeightFormat::kBf16})
      expect_served(b.supports({.in = 272, .out = 257, .format = f}, gpu(90)));
    expect_refused(b.supports({.in = 264, .out = 64}, gpu(90)), VerdictCode::kShapeUnsupported, "264", "16");
    expect_refused(b.supports({.in = 256, .out = 64, .format = WeightFormat::kFp8Block}, gpu(90)),
                   VerdictCode::kFormatUnsupported, "fp8_block", "nvfp4");
    expect_refused(b.supports({.in = 256, .out = 64, .activation = Activation::kF32}, gpu(90)),
                   VerdictCode::kFormatUnsupported, "f32", "bf16");
    expect_refused(b.supports({.in = 256, .out = 64}, gpu(75)), VerdictCode::kWrongSm, "sm75", "sm80");
    expect_refused(b.supports({.in = 256, .out = 64}, Device{}), VerdictCode::kWrongSm, "cpu", "sm80");
  }
}

TEST(CudaProducts, MoeRefusesWhatItsTablesDoNotHold) {
  for (const char* name : {"w4a16_mma", "tiles"}) {
    const auto& b = cuda_backend<MoeOp>(name);
    expect_served(b.supports(moe(), gpu(90)));
    MoeProblem p = moe();
    p.experts = 512, p.top_k = 16, p.shared_width = 48, p.shared_format = WeightFormat::kFp8;
    expect_served(b.supports(p, gpu(90)));
    p.experts = 513;
    expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "513", "512");
    p = moe(), p.top_k = 17;
    expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "17", "16");
    p = moe(), p.experts = 4, p.top_k = 5;
    expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "5", "4");
    p = moe(), p.top_k = 0;
    expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "top 0", "1..");
    p = moe(), p.width = 24;
    expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "24", "16");
    p = moe(), p.shared_format = WeightFormat::kF32;
    expect_refused(b.supports(p, gpu(90)), VerdictCode::kFormatUnsupported, "shared", "bf16");
  }
  MoeProblem p = moe();
  p.format = WeightFormat::kBf16;
  expect_refused(cuda_backend<MoeOp>("w4a16_mma").supports(p, gpu(90)), VerdictCode::kFormatUnsupported, "bf16",
                 "nvfp4");
  expect_served(cuda_backend<MoeOp>("tiles").supports(p, gpu(90)));
}

TEST(CudaProducts, FusedSmallRefusesWhatItsBlocksDoNotHold) {
  const auto& b = cuda_backend<MoeOp>("fused_small");
  expect_served(b.supports(moe(), gpu(80)));
  MoeProblem p = moe();
  p.hidden = 4096, p.experts = 512, p.top_k = 10, p.width = p.shared_width = 1024;
  expect_served(b.supports(p, gpu(90)));
  p = moe(), p.width = p.shared_width = 32;
  expect_served(b.supports(p, gpu(90)));
  p = moe(), p.shared_width = 0;
  expect_served(b.supports(p, gpu(90)));
  p = moe(), p.hidden = 768;
  expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "hidden 768", "a multiple of 512");
  EXPECT_EQ(b.supports(p, gpu(90)).sentence, "hidden must be a multiple of 512, at most 4096, is 768");
  p = moe(), p.hidden = 4608;
  expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "hidden 4608", "at most 4096");
  p = moe(), p.width = p.shared_width = 768;
  expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "width 768", "a multiple of 512");
  p = moe(), p.width = p.shared_width = 2560;
  expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "width 2560", "at most 2048");
  p = moe(), p.shared_width = 1024;
  expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "shared expert of width 1024", "width 512");
  EXPECT_THAT(b.supports(p, gpu(90)).sentence, HasSubstr("width 512 in nvfp4; this one has width 1024 in nvfp4"));
  p = moe(), p.shared_format = WeightFormat::kFp8;
  expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "512 in fp8", "nvfp4");
  p = moe(), p.router_format = WeightFormat::kNvfp4;
  expect_refused(b.supports(p, gpu(90)), VerdictCode::kFormatUnsupported, "router in nvfp4", "bf16");
  p = moe(), p.format = WeightFormat::kFp8;
  expect_refused(b.supports(p, gpu(90)), VerdictCode::kFormatUnsupported, "experts in fp8", "nvfp4");
  p = moe(), p.experts = 513;
  expect_refused(b.supports(p, gpu(90)), VerdictCode::kShapeUnsupported, "513", "512");
  expect_refused(b.supports(moe(), gpu(75)), VerdictCode::kWrongSm, "sm75", "sm80");
}

TEST(CudaProducts, WgmmaIsATacticOfSm90Alone) {
  EXPECT_EQ(cuda::tile_tactics(gpu(80)).size(), 1u);
  EXPECT_EQ(cuda::tile_tactics(gpu(120)).size(), 1u);
  ASSERT_EQ(cuda::tile_tactics(gpu(90)).size(), cuda::wgmma_built() ? 2u : 1u);
  EXPECT_EQ(cuda::tile_tactics(gpu(90)).back().name, cuda::wgmma_built() ? "wgmma" : "mma");
}

TEST(CudaProducts, StreamDirectAndWideAreTacticsOfNvfp4ExpertsAlone) {
  const auto names = [](WeightFormat format, int sm) {
    MoeProblem p = moe();
    p.format = format;
    std::vector<std::string> out;
    for (const Tactic& t : cuda_backend<MoeOp>("tiles").tactics(p, gpu(sm))) out.push_back(t.name);
    return out;
  };
  EXPECT_EQ(names(WeightFormat::kNvfp4, 80), (std::vector<std::string>{"mma", "stream"}));
  const auto on_90 = names(WeightFormat::kNvfp4, 90);
  EXPECT_NE(std::find(on_90.begin(), on_90.end(), "stream"), on_90.end());
  const auto offered = [&](const char* name, int hidden, size_t shared, WeightFormat format) {
    MoeProblem p = moe();
    p.hidden = hidden, p.format = format;
    Device d = gpu(90);
    d.shared_per_block = shared;
    const std::vector<Tactic> all = cuda_backend<MoeOp>("tiles").tactics(p, d);
    return std::any_of(all.begin(), all.end(), [&](const Tactic& t) { return t.name == name; });
  };
  // direct where the rows of two groups fit a block.
  EXPECT_TRUE(offered("direct", 3584, 227 * 1024, WeightFormat::kNvfp4));
  EXPECT_FALSE(offered("direct", 3600, 227 * 1024, WeightFormat::kNvfp4));
  EXPECT_FALSE(offered("direct", 2048, 227 * 1024, WeightFormat::kBf16));
  EXPECT_TRUE(offered("direct", 2048, 163 * 1024, WeightFormat::kNvfp4));
  EXPECT_FALSE(offered("direct", 2048, 99 * 1024, WeightFormat::kNvfp4));
  EXPECT_EQ(cuda::moe_direct_slots(32, 227 * 1024), 3);
  EXPECT_EQ(cuda::moe_direct_slots(8, 227 * 1024), cuda::kMoeDirectSlots);
  // wide is code for 90a: there where wgmma is.
  EXPECT_EQ(std::count(on_90.begin(), on_90.end(), "wide"), std::count(on_90.begin(), on_90.end(), "wgmma"));
  EXPECT_EQ(names(WeightFormat::kNvfp4, 120), (std::vector<std::string>{"mma", "stream"}));
  EXPECT_EQ(names(WeightFormat::kBf16, 80), (std::vector<std::string>{"mma"}));
  // Groups of 8 rows as long as an expert gets about four, of 16 beyond.
  MoeProblem p = moe();
  p.experts = 256, p.top_k = 8;
  for (const int rows : {1, 32, 64, 128, 159}) EXPECT_EQ(cuda::moe_block_rows(p, rows, cuda::TileEngine::kStream), 8);
  for (const int rows : {160, 256, 2048}) EXPECT_EQ(cuda::moe_block_rows(p, rows, cuda::TileEngine::kStream), 16);
  for (const int rows : {1, 256, 2048}) EXPECT_EQ(cuda::moe_block_rows(p, rows, cuda::TileEngine::kDirect), 16);
  // As wide an instruction as leaves few experts with a second group.
  for (const auto& [rows, block] : {std::pair{1, 16},
                                    {256, 16},
                                    {383, 16},
                                    {384, 32},
                                    {799, 32},
                                    {800, 64},
                                    {1567, 64},
                                    {1568, 96},
                                    {2048, 96},
                                    {2592, 128},
                                    {8192, 128}})
    EXPECT_EQ(cuda::moe_block_rows(p, rows, cuda::TileEngine::kWide), block) << rows;
}

// A launch covers moe_most_groups() groups, whatever the routing.
TEST(CudaProducts, NoRoutingMakesMoreGroupsThanALaunchCovers) {
  std::mt19937 random(1);
  for (const int experts : {1, 3, 16, 256})
    for (const int rows : {1, 2, 31, 32, 33, 500})
      for (const int block : {8, 16, 32, 64, 96, 256})
        for (int skew = 0; skew < 3; ++skew) {
          MoeProblem p = moe();
          p.experts = experts, p.top_k = std::min(experts, 8);
          std::vector<int> count(static_cast<size_t>(experts));
          for (int row = 0; row < rows; ++row)
            for (int k = 0; k < p.top_k; ++k) {
              // skew 0: the first experts always; 1: spread evenly; 2: at random
              const int e = skew == 0   ? k
                            : skew == 1 ? (row * p.top_k + k) % experts
                                        : static_cast<int>(random() % static_cast<unsigned>(experts));
              ++count[static_cast<size_t>(e)];
            }
          int groups = (rows + block - 1) / block;
          for (const int n : count) groups += (n + block - 1) / block;
          EXPECT_LE(groups, cuda::moe_most_groups(p, rows, block)) << experts << " " << rows << " " << block;
        }
}

TEST(CudaProducts, WorkspaceGrowsWithRowsUpToOnePass) {
  for (const char* name : {"w4a16_mma", "tiles"}) {
    const auto& b = cuda_backend<MoeOp>(name);
    for (const int shared_width : {0, 48, 512}) {
      MoeProblem p = moe();
      p.shared_width = shared_width;
      size_t before = 0;
      for (const int rows : {1, 2, 3, 16, 31, 32, 33, 64, 500, 2047, 2048, 2049, 5000}) {
        const size_t bytes = b.workspace(b.tactics(p, gpu(90))[0], p, rows, 1);
        EXPECT_GE(bytes, before) << name << " " << rows;
        before = bytes;
      }
      EXPECT_EQ(before, b.workspace(b.tactics(p, gpu(90))[0], p, 2048, 1)) << name;
    }
  }
}

}  // namespace
}  // namespace mettle
