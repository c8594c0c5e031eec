// Costs by hand, the roof they give, and that the probes measure something.
#include "prove/ceiling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/dispatch.h"
#include "prove/test_problems.h"
#include "tensor/buffer.h"

namespace mettle {
namespace {

constexpr DeviceKind kCpu = DeviceKind::kCpu;

// Of 512 experts, 10 a token: as the published budget of that model says.
TEST(Ceiling, DistinctExpertsFollowTheExpectation) {
  const double expected[][2] = {{1, 10}, {2, 19.8}, {4, 38.8}, {8, 74.7}, {16, 138.6}};
  for (const auto& [rows, experts] : expected) EXPECT_NEAR(experts_met(512, 10, int(rows)), experts, 0.06);
  EXPECT_DOUBLE_EQ(experts_met(8, 8, 3), 8);
  EXPECT_LT(experts_met(512, 10, 100'000), 512.0001);
}

TEST(Ceiling, CostsByHand) {
  // NVFP4: 4 bits of code and half a bit of scale a weight, beside 4 bytes of scale for each row.
  const OpCost linear = cost_of(LinearProblem{.in = 256, .out = 512, .format = WeightFormat::kNvfp4}, 3, kCpu);
  EXPECT_EQ(linear.bytes, 512 * 256 * 4.5 / 8 + 512 * 4 + 3 * (256 * 2 + 512 * 4));
  EXPECT_EQ(linear.flops, 2.0 * 3 * 256 * 512);
  EXPECT_EQ(cost_of(EmbedProblem{1000, 64}, 5, kCpu).bytes, 5 * 64 * 6);
  // Residual in and out, two partials in, bf16 out; the weight once.
  EXPECT_EQ(cost_of(JoinProblem{.hidden = 64, .ranks = 2}, 5, kCpu).bytes, 64 * 4 + 5 * 64 * (4 + 4 + 2 * 4 + 2));
  EXPECT_EQ(cost_of(SampleProblem{1000, 900}, 2, kCpu).bytes, 2 * 1000 * 4);

  const MoeProblem moe{.hidden = 256, .experts = 16, .top_k = 4, .width = 128};
  const double expert = 3 * 256 * 128 * 4.5 / 8 + (2 * 128 + 256) * 4;
  const double router = 16 * 256 * 2 + 16 * 4, row = 256 * 2 + 256 * 4 + 4 * 8;
  EXPECT_DOUBLE_EQ(cost_of(moe, 1, kCpu).bytes, router + 4 * expert + row);
  EXPECT_NEAR(cost_of(moe, 512, kCpu).bytes, router + 16 * expert + 512 * row, 1);
  EXPECT_DOUBLE_EQ(cost_of(moe, 1, kCpu).footprint, router + 16 * expert + row);
  EXPECT_EQ(cost_of(moe, 2, kCpu).flops, 2.0 * 2 * 256 * (16 + 3 * 4 * 128));

  // Two rows are two sequences; each reads the 256 keys and values behind it and its own.
  const AttentionProblem a{.hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16};
  const double weights = 2.0 * 64 * (4 + 2 + 2) * 16 + 2.0 * 64 * 64 + 4 * (128 + 64);
  EXPECT_EQ(cost_of(a, 2, kCpu).bytes, weights + 2 * 257 * 2 * 32 * 2 + 2 * (64 * 2 + 64 * 4 + 2 * 32 * 2));
  EXPECT_EQ(cost_of(a, 2, kCpu).flops, 2.0 * 2 * 64 * (128 + 64) + 4.0 * 64 * 2 * 257);
  // 512 rows are sixteen sequences of 32: causal, so half of their own square.
  EXPECT_EQ(cost_of(a, 512, kCpu).flops, 2.0 * 512 * 64 * (128 + 64) + 4.0 * 64 * 16 * (32 * 256 + 32 * 33 / 2));

  const GdnProblem g{.hidden = 64, .key_heads = 2, .value_heads = 4, .dk = 16, .dv = 16};
  EXPECT_EQ(cost_of(g, 1, kCpu).flops, 2.0 * 64 * (128 + 64 + 8 + 64) + 2.0 * 4 * 128 + 7.0 * 4 * 16 * 16);
  // A second sequence adds its states, in and out.
  EXPECT_EQ(cost_of(g, 2, kCpu).bytes - cost_of(g, 1, kCpu).bytes, 2 * 4 * (4 * 16 * 16 + 128 * 3) + 64 * 2 + 64 * 4);
}

TEST(Ceiling, RowsNeverMakeAProblemCheaper) {
  for (const AnyProblem& p : tiny_problems()) {
    OpCost last;
    for (const int rows : kRowBuckets) {
      const OpCost cost = cost_of(p, rows, kCpu);
      EXPECT_GT(cost.bytes, last.bytes) << text_of(p);
      EXPECT_GT(cost.flops, last.flops) << text_of(p);
      EXPECT_GE(cost.footprint, cost.bytes * 0.999) << text_of(p);
      last = cost;
    }
  }
}

TEST(Ceiling, TheRoofIsTheLowerOfTheTwoLines) {
  const LinearProblem p{.in = 256, .out = 512, .format = WeightFormat::kBf16};
  Ceiling c{{{1 << 10, 800}, {1 << 20, 100}, {1 << 30, 10}}, {{"fma_f32", 50}, {"dot_bf16", 200}}};
  const Device cpu = this_cpu();
  // One row: 265,728 bytes, which fit the second probe, at 100 GB/s; 262,144 operations at 200 GFLOP/s take half as
  // long.
  const OpCost one = cost_of(p, 1, kCpu);
  Roof roof = roof_of(p, 1, 10, c, cpu);
  EXPECT_TRUE(roof.by_memory);
  EXPECT_DOUBLE_EQ(roof.gbs, one.bytes / 1e4);
  EXPECT_DOUBLE_EQ(roof.part, one.bytes / 100e9 / 10e-6);
  roof = roof_of(p, 64, 100, c, cpu);
  EXPECT_FALSE(roof.by_memory);
  EXPECT_DOUBLE_EQ(roof.part, 64 * one.flops / 200e9 / 100e-6);
  // Float32 activations do not reach the rate of bf16 products.
  LinearProblem wide = p;
  wide.activation = Activation::kF32;
  EXPECT_DOUBLE_EQ(roof_of(wide, 64, 100, c, cpu).part, 64 * one.flops / 50e9 / 100e-6);
  EXPECT_EQ(c.read_gbs(1 << 10), 800);
  EXPECT_EQ(c.read_gbs(1025), 100);
  EXPECT_EQ(c.read_gbs(1e12), 10);
  c.math.clear();  // not probed: only memory counts
  EXPECT_TRUE(roof_of(p, 64, 100, c, cpu).by_memory);
}

TEST(Ceiling, ProbesMeasure) {
  const Ceiling c = probe_ceiling(this_cpu(), 1);
  ASSERT_GE(c.reads.size(), 3u);
  for (size_t i = 0; i < c.reads.size(); ++i) {
    EXPECT_GT(c.reads[i].gbs, 0);
    EXPECT_GT(c.reads[i].bytes, i > 0 ? c.reads[i - 1].bytes : 0);
  }
  ASSERT_FALSE(c.math.empty());
  EXPECT_GT(c.fork_us, 0);
  for (const MathRate& m : c.math) EXPECT_GT(m.gflops, 0) << m.name;
  Sensors sensors(this_cpu());
  sensors.sample();
  EXPECT_NE(sensors.clock_text(), "");
  EXPECT_NE(sensors.power_text(), "");
}

// Every byte is read: one that changes, anywhere, changes what comes back.
TEST(Ceiling, ReadsEveryByte) {
  Buffer memory(4096 + 4096);  // prefetches reach beyond the end, loads do not
  Device scalar = this_cpu();
  scalar.isas = {Isa::kScalar};
  for (const Device& device : {this_cpu(), scalar}) {
    EXPECT_EQ(read_memory(memory.data(), 4096, device), 0u);
    for (size_t i = 0; i < 4096; ++i) {
      memory.data()[i] = 1;
      EXPECT_NE(read_memory(memory.data(), 4096, device), 0u) << i;
      memory.data()[i] = 0;
    }
    memory.data()[4096] = 1;
    EXPECT_EQ(read_memory(memory.data(), 4096, device), 0u);
    memory.data()[4096] = 0;
  }
}

}  // namespace
}  // namespace mettle
