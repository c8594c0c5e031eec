// The scalar functions behind silu, sigmoid and softmax: accuracy over the whole range, and the values that the exact
// cases of the judge rest on. Every instruction set gives the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/product.h"

namespace mettle {
namespace {

class Elementwise : public testing::TestWithParam<Tactic> {
 protected:
  const cpu::Kernels& kernels() const { return cpu::kernels_of(GetParam().isa); }
  float apply(void (*f)(const float*, float*, int64_t), float x) const {
    float y;
    f(&x, &y, 1);
    return y;
  }
};

std::vector<float> sweep(float low, float high, int n) {
  std::vector<float> x;
  for (int i = 0; i <= n; ++i) x.push_back(low + (high - low) * static_cast<float>(i) / static_cast<float>(n));
  return x;
}

TEST_P(Elementwise, ExpIsWithinTwoUnits) {
  std::vector<float> x = sweep(-87.f, 88.7f, 200'003), y(x.size());
  for (const float v : sweep(-1e-3f, 1e-3f, 1000)) x.push_back(v);
  y.resize(x.size());
  kernels().exp(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double e = std::exp(static_cast<double>(x[i]));
    const double unit = std::ldexp(1.0, std::ilogb(e) - 23);
    ASSERT_LE(std::abs(y[i] - e), 2 * unit) << x[i];
  }
}

TEST_P(Elementwise, ExpAtTheEnds) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(apply(kernels().exp, 0.f), 1.f);
  EXPECT_EQ(apply(kernels().exp, -0.f), 1.f);
  EXPECT_EQ(apply(kernels().exp, -104.f), 0.f);
  EXPECT_EQ(apply(kernels().exp, -1e30f), 0.f);
  EXPECT_EQ(apply(kernels().exp, -infinity), 0.f);
  EXPECT_EQ(apply(kernels().exp, 89.f), infinity);
  EXPECT_EQ(apply(kernels().exp, infinity), infinity);
  EXPECT_TRUE(std::isnan(apply(kernels().exp, NAN)));
}

TEST_P(Elementwise, SigmoidAndSiluSaturateExactly) {
  for (const float x : {18.f, 20.f, 64.f, 128.f, 200.f, 256.f, 1e30f}) {
    EXPECT_EQ(apply(kernels().sigmoid, x), 1.f) << x;
    EXPECT_EQ(apply(kernels().silu, x), x);
  }
  for (const float x : {-104.f, -128.f, -200.f, -1e30f}) {
    EXPECT_EQ(apply(kernels().sigmoid, x), 0.f) << x;
    EXPECT_EQ(apply(kernels().silu, x), 0.f) << x;
  }
  EXPECT_EQ(apply(kernels().sigmoid, 0.f), .5f);
  EXPECT_TRUE(std::isnan(apply(kernels().silu, NAN)));
  for (const float x : sweep(-80.f, 20.f, 10'007)) {
    const double e = x / (1 + std::exp(-static_cast<double>(x)));
    ASSERT_NEAR(apply(kernels().silu, x), e, 3e-7 * std::abs(e)) << x;
  }
}

TEST_P(Elementwise, RoundsToBf16LikeTheCodec) {
  std::vector<float> x = sweep(-3.f, 3.f, 4099);
  for (const uint32_t bits :
       {0x7F800001u, 0x7FC00000u, 0xFF800001u, 0x7F800000u, 0x7F7FFFFFu, 0x00000001u, 0x3F808000u, 0x3F818000u})
    x.push_back(std::bit_cast<float>(bits));
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> half(x.size());
  std::vector<float> rounded(x.size()), same(x.size());
  kernels().round_to(x.data(), half.data(), n, true, true);
  kernels().round_to(x.data(), rounded.data(), n, true, false);
  kernels().round_to(x.data(), same.data(), n, false, false);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(half[i], float_to_bf16(x[i])) << x[i];
    ASSERT_EQ(std::bit_cast<uint32_t>(rounded[i]), uint32_t{float_to_bf16(x[i])} << 16) << x[i];
    ASSERT_EQ(std::bit_cast<uint32_t>(same[i]), std::bit_cast<uint32_t>(x[i]));
  }
}

TEST_P(Elementwise, EveryInstructionSetAndLengthGivesTheSameBits) {
  const std::vector<float> x = sweep(-110.f, 95.f, 1000);
  std::vector<float> all(x.size());
  cpu::kernels_scalar.silu(x.data(), all.data(), static_cast<int64_t>(x.size()));
  for (const size_t n : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{33}, x.size()}) {
    std::vector<float> some(n);
    kernels().silu(x.data(), some.data(), static_cast<int64_t>(n));
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(std::bit_cast<uint32_t>(some[i]), std::bit_cast<uint32_t>(all[i])) << x[i];
  }
}

INSTANTIATE_TEST_SUITE_P(All, Elementwise, testing::ValuesIn(isa_tactics(this_cpu())),
                         [](const testing::TestParamInfo<Tactic>& info) { return info.param.name; });

}  // namespace
}  // namespace mettle
