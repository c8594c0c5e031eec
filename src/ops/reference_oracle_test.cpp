// The reference backends against the float64 oracles on random problems: nothing may use more than half of the judge's
// limit.
#include <gtest/gtest.h>

#include <string>

#include "ops/oracle_test_ops.h"

namespace mettle {
namespace {

using namespace oracle_test;  // the test's own vocabulary

constexpr WeightFormat kFormats[] = {WeightFormat::kNvfp4, WeightFormat::kBf16, WeightFormat::kFp8,
                                     WeightFormat::kFp8Block, WeightFormat::kF32};
constexpr Activation kActivations[] = {Activation::kBf16, Activation::kF32};
constexpr int kSeeds = 20;

WeightFormat format_of(int seed, int shift) { return kFormats[(seed + shift) % 5]; }

TEST(ReferenceOracle, Linear) {
  double worst = 0;
  for (int seed = 0; seed < kSeeds; ++seed)
    for (const Activation activation : kActivations) {
      Random random(static_cast<uint32_t>(seed));
      const int rows[] = {1, 3, 17, 65};
      const LinearProblem p{
          .in = seed % 4 == 0 ? 2048 : 96, .out = 33 + seed, .format = format_of(seed, 0), .activation = activation};
      const Weights w = random_weights(p.format, {17, p.out - 17}, p.in, random);
      const PackedMatrix packed = pack_tile16(w.raw);
      const int n = rows[seed % 4];
      Values x(dtype_of(activation), {n, p.in}), y(DType::kF32, {n, p.out});
      x.fill(random);
      run_reference<LinearOp>({.problem = p, .rows = n, .x = x.view, .weight = &packed, .y = y.view, .ws = {}}, n,
                              1 + seed % 3);
      worst = std::max(worst, worst_element(oracle::linear(p, w.raw, x.view, all_of(n), {}), y.view).sigmas);
    }
  EXPECT_LE(worst, kHealthy);
  RecordProperty("worst", std::to_string(worst));
}

TEST(ReferenceOracle, Moe) {
  double worst = 0, worst_weights = 0;
  for (int seed = 0; seed < kSeeds; ++seed)
    for (const Activation activation : kActivations) {
      Random random(static_cast<uint32_t>(100 + seed));
      const int rows[] = {1, 5, 16, 70};
      const MoeProblem p{.hidden = seed == 3 ? 1024 : 64,
                         .experts = 5 + seed % 7,
                         .top_k = 1 + seed % 4,
                         .width = seed == 3 ? 256 : 48,
                         .shared_width = seed % 3 == 0 ? 0 : 32,
                         .shared_gate = seed % 3 == 1,
                         .renormalise = seed % 2 == 0,
                         .format = format_of(seed, 0),
                         .shared_format = format_of(seed, 1),
                         .router_format = seed % 5 == 0 ? WeightFormat::kF32 : WeightFormat::kBf16,
                         .activation = activation};
      MoeSetup s(p, rows[seed % 4], random);
      run_reference<MoeOp>(s.args(), s.rows(), 1 + seed % 3);
      const Worst w = worst_element(s.expected(), s.partial.view);
      worst = std::max(worst, w.sigmas);
      const oracle::RouteExpected route = oracle::route(p, s.raw, s.x.view, all_of(s.rows()), s.ids.data(), {});
      worst_weights = std::max(worst_weights, worst_element(route.weights, s.weights.data()).sigmas);
      std::vector<int32_t> ids(s.ids.size());
      std::vector<float> weights(ids.size());
      oracle::select(p, s.raw, s.x.view, ids.data(), weights.data());
      EXPECT_EQ(ids, s.ids) << seed;
    }
  EXPECT_LE(worst, kHealthy);
  EXPECT_LE(worst_weights, kHealthy);
  RecordProperty("worst", std::to_string(worst));
}

void expect_attention_over(CacheFormat cache) {
  double worst = 0, worst_k = 0, worst_v = 0;
  for (int seed = 0; seed < kSeeds; ++seed)
    for (const Activation activation : kActivations) {
      Random random(static_cast<uint32_t>(200 + seed));
      const int kv = 1 + seed % 3;
      const AttentionProblem p{.hidden = seed == 2 ? 1024 : 64,
                               .heads = kv * (1 + seed % 4),
                               .kv_heads = kv,
                               .head_dim = seed % 2 == 0 ? 32 : 64,
                               .rotary_dim = seed % 4 == 1 ? 0 : 16,
                               .gate = seed % 3 != 0,
                               .qk_norm = seed % 5 != 4,
                               .norm_plus_one = seed % 2 == 0,
                               .qkv_format = format_of(seed, 0),
                               .out_format = format_of(seed, 2),
                               .activation = activation,
                               .cache = cache,
                               .block_size = seed % 2 == 0 ? 16 : 5};
      AttentionSetup s(p, {{1, 0}, {1, 130}, {3, 15}, {40, 0}, {33, 300}, {1, 16}}, random);
      const oracle::AppendExpected append = oracle::attention_append(p, s.raw, s.batch.batch, s.x.view, {});
      run_reference<AttentionOp>(s.args(), s.rows(), 1 + seed % 3);
      worst_k = std::max(worst_k, s.worst_appended(append.k, s.k_cache).sigmas);
      worst_v = std::max(worst_v, s.worst_appended(append.v, s.v_cache).sigmas);
      worst = std::max(worst, worst_element(s.expected(), s.partial.view).sigmas);
    }
  EXPECT_LE(worst, kHealthy);
  EXPECT_LE(worst_k, kHealthy);
  EXPECT_LE(worst_v, kHealthy);
  testing::Test::RecordProperty("worst", std::to_string(worst));
}

TEST(ReferenceOracle, Attention) { expect_attention_over(CacheFormat::kActivation); }
TEST(ReferenceOracle, AttentionOverAnFp8Cache) { expect_attention_over(CacheFormat::kE4M3); }

TEST(ReferenceOracle, Gdn) {
  double worst = 0, worst_state = 0, worst_conv = 0;
  for (int seed = 0; seed < kSeeds; ++seed)
    for (const Activation activation : kActivations) {
      Random random(static_cast<uint32_t>(300 + seed));
      const int keys = 1 + seed % 3;
      const GdnProblem p{.hidden = seed == 2 ? 1024 : 64,
                         .key_heads = keys,
                         .value_heads = keys * (1 + seed % 4),
                         .dk = seed % 2 == 0 ? 16 : 64,
                         .dv = seed % 3 == 0 ? 64 : 32,
                         .in_format = format_of(seed, 0),
                         .ba_format = WeightFormat::kBf16,
                         .out_format = format_of(seed, 3),
                         .activation = activation};
      GdnSetup s(p, {{1, 0}, {1, 4}, {70, 0}, {3, 64}, {129, 7}}, random);
      const oracle::GdnExpected e = s.expected();
      run_reference<GdnOp>(s.args(), s.rows(), 1 + seed % 3);
      worst = std::max(worst, worst_element(e.partial, s.partial.view).sigmas);
      for (size_t i = 0; i < s.batch.sequences.size(); ++i) {
        worst_state =
            std::max(worst_state, worst_element(e.state[i], s.state_of(s.batch.sequences[i].state_out)).sigmas);
        worst_conv = std::max(worst_conv, worst_element(e.conv[i], s.conv_of(s.batch.sequences[i].state_out)).sigmas);
      }
    }
  EXPECT_LE(worst, kHealthy);
  EXPECT_LE(worst_state, kHealthy);
  EXPECT_LE(worst_conv, kHealthy);
  RecordProperty("worst", std::to_string(worst));
}

TEST(ReferenceOracle, Join) {
  double worst = 0, worst_residual = 0;
  for (int seed = 0; seed < kSeeds; ++seed)
    for (const Activation activation : kActivations) {
      Random random(static_cast<uint32_t>(400 + seed));
      const int hidden = seed % 2 == 0 ? 2048 : 97, rows = 1 + seed;
      const JoinProblem p{.hidden = hidden, .ranks = seed % 5, .plus_one = seed % 2 == 0, .activation = activation};
      const float scale = seed % 4 == 3 ? 2e-4f : 1.f;
      Values residual(DType::kF32, {rows, hidden}), x(dtype_of(activation), {rows, hidden});
      residual.fill(random, scale);
      std::vector<Values> parts;
      std::vector<const float*> partials;
      for (int i = 0; i < p.ranks; ++i) {
        parts.emplace_back(DType::kF32, Shape{rows, hidden}).fill(random, scale);
        partials.push_back(parts.back().f32());
      }
      const std::vector<float> weight = random_vector(hidden, random, p.plus_one ? 0.f : 1.f, 0.05f);
      const Expected r = oracle::join_residual(p, residual.view, partials, {});
      run_reference<JoinOp>({.problem = p,
                             .rows = rows,
                             .residual = residual.view,
                             .partials = partials,
                             .weight = weight.data(),
                             .x = x.view},
                            rows, 2);
      worst_residual = std::max(worst_residual, worst_element(r, residual.view).sigmas);
      worst = std::max(worst, worst_element(oracle::join_x(p, residual.view, weight.data(), {}), x.view).sigmas);
    }
  EXPECT_LE(worst, kHealthy);
  EXPECT_LE(worst_residual, kHealthy);
  RecordProperty("worst", std::to_string(worst));
}

}  // namespace
}  // namespace mettle
