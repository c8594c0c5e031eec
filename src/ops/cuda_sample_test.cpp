// What the CUDA backends of embed, join and sample say of problems and devices: host code of every build.
#include <gtest/gtest.h>

#include "ops/embed.h"
#include "ops/join.h"
#include "ops/sample.h"

namespace mettle {
namespace {

template <class Op>
const Backend<Op>& backend(std::string_view name) {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->kind == DeviceKind::kCuda && b->name == name) return *b;
  throw std::runtime_error("no such CUDA backend");
}

Device gpu(int sm) {
  return {.kind = DeviceKind::kCuda,
          .name = "sm" + std::to_string(sm),
          .sm = sm,
          .shared_per_block = static_cast<size_t>(sm < 90 ? 163 : 227) << 10};
}

template <class Op>
void expect(std::string_view name, VerdictCode code, const typename Op::Problem& p, const Device& device = gpu(90)) {
  const Backend<Op>& b = backend<Op>(name);
  if (code == VerdictCode::kOk && b.run == nullptr) code = VerdictCode::kNotBuilt;
  const Verdict v = b.supports(p, device);
  EXPECT_EQ(name_of(v.code), name_of(code)) << name << ", " << p.text() << ": " << v.have << ", " << v.need;
}

constexpr auto kOk = VerdictCode::kOk;
constexpr auto kShape = VerdictCode::kShapeUnsupported;
constexpr auto kWrongSm = VerdictCode::kWrongSm;

TEST(CudaSample, EmbedTakesAnyTable) {
  expect<EmbedOp>("reference", kOk, {248320, 2048});
  expect<EmbedOp>("reference", kOk, {3, 1}, gpu(80));
  expect<EmbedOp>("reference", kWrongSm, {3, 1}, gpu(75));
  expect<EmbedOp>("reference", kWrongSm, {3, 1}, Device{});
}

TEST(CudaSample, JoinFusedTakesRowsThatStayInRegisters) {
  for (const char* name : {"fused", "reference"}) {
    expect<JoinOp>(name, kOk, {.hidden = 2048, .ranks = 0});
    expect<JoinOp>(name, kOk, {.hidden = 16384, .ranks = 8});
    expect<JoinOp>(name, kShape, {.hidden = 2048, .ranks = 9});
    expect<JoinOp>(name, VerdictCode::kFormatUnsupported, {.hidden = 2048, .activation = Activation::kF32});
    expect<JoinOp>(name, kWrongSm, {.hidden = 2048}, gpu(75));
    expect<JoinOp>(name, kWrongSm, {.hidden = 2048}, Device{});
  }
  for (const int hidden : {2047, 16388}) {
    expect<JoinOp>("fused", kShape, {.hidden = hidden});
    expect<JoinOp>("reference", kOk, {.hidden = hidden});
  }
}

TEST(CudaSample, RadixNeedsSharedMemoryAndAPlaceForEveryId) {
  for (const char* name : {"radix", "reference"}) {
    expect<SampleOp>(name, kOk, {248320, 248077});
    expect<SampleOp>(name, kOk, {1, 1}, gpu(80));
    expect<SampleOp>(name, kOk, {1 << 20, 1 << 20});
    expect<SampleOp>(name, kShape, {(1 << 20) + 1, (1 << 20) + 1});
    expect<SampleOp>(name, kWrongSm, {6144, 6144}, gpu(75));
    expect<SampleOp>(name, kWrongSm, {6144, 6144}, Device{});
  }
  Device small = gpu(80);
  small.shared_per_block = 48 << 10;
  expect<SampleOp>("radix", VerdictCode::kSmemTooSmall, {6144, 6144}, small);
  expect<SampleOp>("reference", kOk, {6144, 6144}, small);
}

TEST(CudaSample, WorkspaceGrowsWithTheRows) {
  const SampleProblem p{248320, 248077};
  for (const char* name : {"radix", "reference"}) {
    const Backend<SampleOp>& b = backend<SampleOp>(name);
    const Tactic tactic = b.tactics(p, gpu(90)).front();
    size_t before = 0;
    for (const int rows : {1, 8, 9, 24, 25, 64, 512}) {
      const size_t bytes = b.workspace(tactic, p, rows, 1);
      EXPECT_GE(bytes, before + static_cast<size_t>(p.usable) * 4) << rows;  // a changed logit may be any
      before = bytes;
    }
  }
}

}  // namespace
}  // namespace mettle
