// The reference backends on cases small enough to tell the result by hand, and what must not change it: chunk borders,
// other rows, threads.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "ops/embed.h"
#include "ops/oracle_test_ops.h"

namespace mettle {
namespace {

using namespace oracle_test;  // the test's own vocabulary

constexpr Activation kActivations[] = {Activation::kBf16, Activation::kF32};

// A float32 weight of given values.
Weights weights_of(int64_t rows, int64_t cols, const std::vector<float>& values) {
  Weights w;
  w.memory.push_back(std::make_shared<std::vector<uint8_t>>(values.size() * 4));
  std::memcpy(w.memory[0]->data(), values.data(), values.size() * 4);
  w.raw.push_back({.format = WeightFormat::kF32,
                   .rows = rows,
                   .cols = cols,
                   .data = w.memory[0]->data(),
                   .row_bytes = cols * 4,
                   .name = "w"});
  return w;
}
Weights identity(int64_t n, float scale = 1) {
  std::vector<float> v(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) v[static_cast<size_t>(i * n + i)] = scale;
  return weights_of(n, n, v);
}

// ---- embed, join, linear --------------------------------------------------------------------------------------------

TEST(Reference, EmbedCopiesRows) {
  Random random(1);
  Values table(DType::kBF16, {5, 7}), residual(DType::kF32, {4, 7});
  table.fill(random);
  const int32_t ids[] = {4, 0, 4, 2};
  run_reference<EmbedOp>({.problem = {5, 7}, .rows = 4, .ids = ids, .table = table.view, .residual = residual.view}, 4,
                         2);
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t c = 0; c < 7; ++c) EXPECT_EQ(residual.f32()[r * 7 + c], value_at(table.view, ids[r] * 7 + c));
}

TEST(Reference, JoinAddsInRankOrderAndNorms) {
  Values residual(DType::kF32, {1, 4}), a(DType::kF32, {1, 4}), b(DType::kF32, {1, 4}), x(DType::kF32, {1, 4});
  const float start[] = {1, -2, 3, 0}, first[] = {2, 2, -1, 4}, second[] = {0, 4, 2, -8};
  for (int i = 0; i < 4; ++i) {
    residual.set(i, start[i]);
    a.set(i, first[i]);
    b.set(i, second[i]);
  }
  const float* partials[] = {a.f32(), b.f32()};
  const float weight[] = {0, 1, -1, 0.5f};
  JoinArgs args{.problem = {.hidden = 4, .ranks = 2, .plus_one = true, .eps = 0, .activation = Activation::kF32},
                .rows = 1,
                .residual = residual.view,
                .partials = partials,
                .weight = weight,
                .x = x.view};
  run_reference<JoinOp>(args, 1);
  const float sums[] = {3, 4, 4, -4};  // mean square 57 / 4
  const float factors[] = {1, 2, 0, 1.5f};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(residual.f32()[i], sums[i]);
    EXPECT_FLOAT_EQ(x.f32()[i], sums[i] * factors[i] / std::sqrt(14.25f));
  }
  args.problem.plus_one = false;  // the same weights as they are
  args.problem.ranks = 0;
  args.partials = {};
  run_reference<JoinOp>(args, 1);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(residual.f32()[i], sums[i]);
    EXPECT_FLOAT_EQ(x.f32()[i], sums[i] * weight[i] / std::sqrt(14.25f));
  }
}

TEST(Reference, JoinTakesOnePlusWInFloat32) {
  Values residual(DType::kF32, {1, 2}), x(DType::kF32, {1, 2});
  residual.set(0, 1);
  residual.set(1, -1);
  const float weight[] = {0x1p-10f, 0};  // 1 + 2^-10 is lost in bf16
  run_reference<JoinOp>(
      {.problem = {.hidden = 2, .ranks = 0, .plus_one = true, .eps = 0, .activation = Activation::kF32},
       .rows = 1,
       .residual = residual.view,
       .partials = {},
       .weight = weight,
       .x = x.view},
      1);
  EXPECT_EQ(x.f32()[0], 1 + 0x1p-10f);
  EXPECT_EQ(x.f32()[1], -1.f);
}

TEST(Reference, LinearRowsDoNotDependOnOthers) {
  Random random(2);
  const LinearProblem p{.in = 80, .out = 50, .format = WeightFormat::kNvfp4};
  const Weights w = random_weights(p.format, {50}, 80, random);
  const PackedMatrix packed = pack_tile16(w.raw);
  Values x(DType::kBF16, {130, 80}), y(DType::kF32, {130, 50}), one(DType::kF32, {1, 50});
  x.fill(random);
  run_reference<LinearOp>({.problem = p, .rows = 130, .x = x.view, .weight = &packed, .y = y.view, .ws = {}}, 130, 3);
  for (int64_t r : {0, 63, 64, 129}) {
    const TensorView row{x.view.as<uint16_t>() + r * 80, DType::kBF16, {1, 80}};
    run_reference<LinearOp>({.problem = p, .rows = 1, .x = row, .weight = &packed, .y = one.view, .ws = {}}, 1);
    EXPECT_EQ(std::memcmp(one.f32(), y.f32() + r * 50, 200), 0) << r;
  }
}

TEST(Reference, NoRowsIsNoWork) {
  Random random(2);
  const LinearProblem p{.in = 16, .out = 5, .format = WeightFormat::kBf16};
  const PackedMatrix packed = pack_tile16(random_weights(p.format, {5}, 16, random).raw);
  Values x(DType::kBF16, {0, 16}), y(DType::kF32, {0, 5});
  run_reference<LinearOp>({.problem = p, .rows = 0, .x = x.view, .weight = &packed, .y = y.view, .ws = {}}, 0);
  MoeSetup moe({.hidden = 16, .experts = 2, .top_k = 1, .width = 16}, 0, random);
  MoeArgs args = moe.args();
  int32_t id = 7;
  float weight = 7;
  args.selection = {false, &id, &weight};
  run_reference<MoeOp>(args, 0);
  EXPECT_EQ(id, 7);
}

TEST(Reference, RefusesWhatItCannotDo) {
  const Device cpu{.name = "cpu", .model = "", .isas = {Isa::kScalar}}, gpu{.name = "sm90", .model = "", .isas = {}};
  EXPECT_EQ(reference<MoeOp>().supports({.hidden = 16, .experts = 2, .top_k = 3, .width = 16}, cpu).code,
            VerdictCode::kShapeUnsupported);
  EXPECT_EQ(reference<AttentionOp>().supports({.hidden = 16, .heads = 3, .kv_heads = 2, .head_dim = 16}, cpu).code,
            VerdictCode::kShapeUnsupported);
  EXPECT_EQ(reference<AttentionOp>()
                .supports({.hidden = 16, .heads = 2, .kv_heads = 2, .head_dim = 16, .rotary_dim = 18}, cpu)
                .code,
            VerdictCode::kShapeUnsupported);
  EXPECT_EQ(reference<GdnOp>().supports({.hidden = 16, .key_heads = 2, .value_heads = 3, .dk = 16, .dv = 16}, cpu).code,
            VerdictCode::kShapeUnsupported);
  EXPECT_EQ(reference<LinearOp>().supports({.in = 16, .out = 16}, gpu).code, VerdictCode::kWrongSm);
  EXPECT_EQ(reference<LinearOp>().supports({.in = 16, .out = 16}, cpu).code, VerdictCode::kOk);
}

// ---- moe ------------------------------------------------------------------------------------------------------------

// Logits as they are: x is one-hot and the router holds one column of float32.
TEST(Reference, RouterAgainstFloat64) {
  constexpr int kExperts = 33, kTopK = 7, kHidden = 16;
  constexpr float kMax = std::numeric_limits<float>::max();
  Random random(3);
  std::vector<std::vector<float>> adversarial;
  const auto add = [&](const std::function<float(int)>& logit) {
    auto& l = adversarial.emplace_back();
    for (int e = 0; e < kExperts; ++e) l.push_back(logit(e));
  };
  add([](int) { return 0.f; });  // all tied
  add([](int e) { return e % 2 == 0 ? 1.f : 1.f; });
  add([](int e) { return static_cast<float>(e / 4); });                      // tied in fours, the cut inside a group
  add([](int e) { return 50.f + std::ldexp(static_cast<float>(e), -18); });  // one ulp apart
  add([](int e) { return e == 20 ? kMax : -kMax; });
  add([](int e) { return e % 3 == 0 ? -kMax : -kMax / 2; });
  add([](int e) { return e == 5 ? 1e30f : 0.f; });
  add([](int e) { return -1e30f - 1e24f * static_cast<float>(e); });
  add([](int e) { return std::ldexp(static_cast<float>(e - 16), -149); });  // subnormals
  add([](int e) { return static_cast<float>(e) * 3.5f - 60.f; });           // weights over many magnitudes
  add([](int e) { return e % 2 == 0 ? -0.f : 0.f; });                       // -0 equals 0
  for (const float scale : {0.01f, 1.f, 30.f}) add([&](int) { return normal(random) * scale; });
  for (const std::vector<float>& logits : adversarial)
    for (const bool renormalise : {true, false}) {
      MoeSetup s({.hidden = kHidden,
                  .experts = kExperts,
                  .top_k = kTopK,
                  .width = 16,
                  .renormalise = renormalise,
                  .router_format = WeightFormat::kF32,
                  .activation = Activation::kF32},
                 1, random);
      std::vector<float> router(kExperts * kHidden);
      for (size_t e = 0; e < kExperts; ++e) router[e * kHidden] = logits[e];
      const Weights w = weights_of(kExperts, kHidden, router);
      s.raw.router = w.raw;
      s.packed.router = pack_tile16(w.raw);
      for (int64_t i = 0; i < kHidden; ++i) s.x.set(i, i == 0 ? 1.f : 0.f);
      run_reference<MoeOp>(s.args(), 1);
      // Float64 by hand: order by (logit descending, id ascending), then softmax.
      std::vector<int32_t> order;
      for (int e = 0; e < kExperts; ++e) order.push_back(e);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      const auto value = [&](int32_t e) {
        return std::exp(static_cast<double>(logits[static_cast<size_t>(e)]) -
                        static_cast<double>(logits[static_cast<size_t>(order[0])]));
      };
      double sum = 0;
      for (int e = 0; e < (renormalise ? kTopK : kExperts); ++e) sum += value(order[static_cast<size_t>(e)]);
      double total = 0;
      for (size_t k = 0; k < kTopK; ++k) {
        const double want = value(order[k]) / sum, got = static_cast<double>(s.weights[k]);
        EXPECT_EQ(s.ids[k], order[k]);
        EXPECT_TRUE(std::isfinite(got));
        EXPECT_LE(std::fabs(got - want), 1e-5 * want + 1e-44);
        total += got;
      }
      EXPECT_NEAR(renormalise ? total : 1, 1, 1e-6);
      std::vector<int32_t> ids(kTopK);
      std::vector<float> weights(kTopK);
      oracle::select(s.p, s.raw, s.x.view, ids.data(), weights.data());
      EXPECT_EQ(ids, s.ids);
      for (size_t k = 0; k < kTopK; ++k) EXPECT_NEAR(weights[k], s.weights[k], 1e-6f);
    }
}

TEST(Reference, MoeTakesTheGivenSelection) {
  Random random(4);
  MoeSetup s({.hidden = 32, .experts = 6, .top_k = 2, .width = 16, .activation = Activation::kF32}, 3, random);
  s.ids = {5, 0, 3, 2, 1, 4};
  s.weights = {2, 0, 0, -1, 0.5f, 0.25f};
  const std::vector<int32_t> ids = s.ids;
  const std::vector<float> weights = s.weights;
  MoeArgs args = s.args();
  args.selection.given = true;
  run_reference<MoeOp>(args, 3);
  EXPECT_EQ(s.ids, ids);
  EXPECT_EQ(s.weights, weights);
  // Row 0 is twice expert 5 alone: doubling the weight doubles the row, bit for bit.
  const std::vector<float> row(s.partial.f32(), s.partial.f32() + 32);
  s.weights[0] = 4;
  run_reference<MoeOp>(args, 3);
  for (size_t c = 0; c < 32; ++c) EXPECT_EQ(s.partial.f32()[c], 2 * row[c]);
  // Padding adds nothing, whatever its weight is: row 0 stays expert 5 alone, a row of padding is zero.
  s.ids = {5, -1, -1, -1, 1, 4};
  s.weights = {4, NAN, NAN, INFINITY, 0.5f, 0.25f};
  run_reference<MoeOp>(args, 3);
  for (size_t c = 0; c < 32; ++c) {
    EXPECT_EQ(s.partial.f32()[c], 2 * row[c]);
    EXPECT_EQ(s.partial.f32()[32 + c], 0);
  }
}

TEST(Reference, MoeRefusesGivenIdsThatAreNoExperts) {
  Random random(4);
  MoeSetup s({.hidden = 32, .experts = 36, .top_k = 2, .width = 16, .activation = Activation::kF32}, 3, random);
  s.ids = {35, 0, 3, 2, 1, 4};
  s.weights.assign(6, 0.5f);
  MoeArgs args = s.args();
  args.selection.given = true;
  check_args(args);
  s.ids[2] = -1;  // padding
  check_args(args);
  for (const int32_t bad : {-2, 36, INT32_MAX, INT32_MIN}) {
    s.ids[3] = bad;
    try {
      check_args(args);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kInternal);
      EXPECT_EQ(e.message,
                "moe.selection: expert ids must be in 0..35 or -1, got " + std::to_string(bad) + " in row 1, place 1");
    }
  }
}

TEST(Reference, MoeRowsDoNotDependOnOthersOrThreads) {
  for (const Activation activation : kActivations) {
    Random random(5);
    MoeSetup s({.hidden = 48,
                .experts = 5,
                .top_k = 3,
                .width = 32,
                .shared_width = 16,
                .shared_gate = true,
                .activation = activation},
               90, random);
    run_reference<MoeOp>(s.args(), 90, 3);
    const Values all = s.partial.copy();
    run_reference<MoeOp>(s.args(), 90, 1);
    EXPECT_EQ(std::memcmp(all.view.data, s.partial.f32(), all.view.bytes()), 0);
    const auto width = static_cast<size_t>(48 * size_of(s.x.view.dtype));
    for (int64_t r : {0, 64, 89}) {
      MoeArgs args = s.args();
      args.rows = 1;
      args.x = {s.x.memory.data() + static_cast<size_t>(r) * width, s.x.view.dtype, {1, 48}};
      args.partial.shape = {1, 48};
      run_reference<MoeOp>(args, 1);
      EXPECT_EQ(std::memcmp(all.view.as<float>() + r * 48, s.partial.f32(), 48 * 4), 0) << r;
    }
  }
}

// ---- attention ------------------------------------------------------------------------------------------------------

// One sequence in one go against pieces of `step` rows: same partials, same caches, bit for bit.
TEST(Reference, AttentionChunkBordersAreInvisible) {
  for (const Activation activation : kActivations) {
    const AttentionProblem p{.hidden = 32,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 16,
                             .rotary_dim = 8,
                             .gate = true,
                             .activation = activation,
                             .block_size = 8};
    Random random(6);
    AttentionSetup s(p, {{150, 0}}, random);
    run_reference<AttentionOp>(s.args(), 150, 2);
    const Values all = s.partial.copy(), keys = s.k_cache.copy(), values = s.v_cache.copy();
    for (const int step : {1, 7, 64}) {
      std::memset(s.k_cache.memory.data(), 0x7F, s.k_cache.view.bytes());
      std::memset(s.v_cache.memory.data(), 0x7F, s.v_cache.view.bytes());
      const auto width = static_cast<size_t>(32 * size_of(s.x.view.dtype));
      for (int at = 0; at < 150; at += step) {
        BatchSequence sequence = s.batch.sequences[0];
        sequence.q_len = std::min(step, 150 - at);
        sequence.ctx_len = at;
        const Batch batch{sequence.q_len, p.block_size, {&sequence, 1}};
        AttentionArgs args = s.args();
        args.batch = &batch;
        args.x = {s.x.memory.data() + static_cast<size_t>(at) * width, s.x.view.dtype, {sequence.q_len, 32}};
        args.partial = {s.partial.f32() + at * 32, DType::kF32, {sequence.q_len, 32}};
        run_reference<AttentionOp>(args, sequence.q_len);
      }
      EXPECT_EQ(std::memcmp(all.view.data, s.partial.f32(), all.view.bytes()), 0) << step;
      for (int row = 0; row < 150; ++row) {
        const size_t at = static_cast<size_t>(s.cache_at(row)) * size_of(keys.view.dtype),
                     bytes = 32 * size_of(keys.view.dtype);
        ASSERT_EQ(std::memcmp(keys.memory.data() + at, s.k_cache.memory.data() + at, bytes), 0) << step << ", " << row;
        ASSERT_EQ(std::memcmp(values.memory.data() + at, s.v_cache.memory.data() + at, bytes), 0)
            << step << ", " << row;
      }
    }
  }
}

TEST(Reference, PartialRotaryLeavesTheOtherDims) {
  Random random(7);
  const AttentionProblem p{.hidden = 32,
                           .heads = 2,
                           .kv_heads = 1,
                           .head_dim = 16,
                           .rotary_dim = 6,
                           .qk_norm = false,
                           .activation = Activation::kF32};
  AttentionSetup s(p, {{5, 0}}, random);
  run_reference<AttentionOp>(s.args(), 5);
  const Values rotated = s.k_cache.copy();
  AttentionArgs args = s.args();
  AttentionWeights plain = pack_attention(Layout::kTile16, s.raw);
  plain.inv_freq = {};
  args.problem.rotary_dim = 0;
  args.weights = &plain;
  run_reference<AttentionOp>(args, 5);
  for (int row = 0; row < 5; ++row)
    for (int d = 0; d < 16; ++d) {
      const int64_t at = s.cache_at(row) + d;
      const float with = rotated.view.as<float>()[at], without = s.k_cache.f32()[at];
      if (d >= 6 || row == 0) {
        EXPECT_EQ(with, without) << row << ", " << d;
      } else {  // pairs are (i, i + 3); one rotation by hand
        const int i = d % 3;
        const double angle = static_cast<double>(static_cast<float>(row) * s.raw.inv_freq[static_cast<size_t>(i)]);
        const double a = s.k_cache.f32()[s.cache_at(row) + i], b = s.k_cache.f32()[s.cache_at(row) + i + 3];
        const double want =
            d < 3 ? a * std::cos(angle) - b * std::sin(angle) : b * std::cos(angle) + a * std::sin(angle);
        EXPECT_NEAR(with, want, 1e-6) << row << ", " << d;
      }
    }
}

TEST(Reference, ZeroNormWeightsAreIdentityWhenOneIsAdded) {
  Random random(8);
  const AttentionProblem p{.hidden = 32,
                           .heads = 2,
                           .kv_heads = 2,
                           .head_dim = 16,
                           .norm_plus_one = true,
                           .eps = 0,
                           .activation = Activation::kF32};
  AttentionSetup s(p, {{3, 0}}, random);
  AttentionWeights w = pack_attention(Layout::kTile16, s.raw);
  w.q_norm = w.k_norm = FloatArray(std::vector<float>(16, 0.f));
  AttentionArgs args = s.args();
  args.weights = &w;
  run_reference<AttentionOp>(args, 3);
  double squares = 0;
  for (int d = 0; d < 16; ++d) squares += std::pow(value_at(s.k_cache.view, s.cache_at(1) + d), 2);
  EXPECT_NEAR(squares / 16, 1, 1e-5);
  args.problem.norm_plus_one = false;  // w = 0 as it is: nothing is left of k
  run_reference<AttentionOp>(args, 3);
  for (int d = 0; d < 16; ++d) EXPECT_EQ(value_at(s.k_cache.view, s.cache_at(1) + d), 0);
}

// Rows of a head are [q | gate]: head 0 has its gate wide open, head 1 shut. With q = 0 every visible key counts the
// same.
TEST(Reference, QueryAndGateAreSplitPerHead) {
  const AttentionProblem p{.hidden = 8,
                           .heads = 2,
                           .kv_heads = 1,
                           .head_dim = 4,
                           .gate = true,
                           .qk_norm = false,
                           .qkv_format = WeightFormat::kF32,
                           .out_format = WeightFormat::kF32,
                           .activation = Activation::kF32};
  std::vector<float> qkv(24 * 8);
  const auto at = [&](int row, int col) -> float& { return qkv[static_cast<size_t>(row * 8 + col)]; };
  for (int d = 0; d < 4; ++d) {
    at(4 + d, 7) = 200;    // gate of head 0
    at(12 + d, 7) = -200;  // gate of head 1
    at(20 + d, d) = 1;     // v
  }
  const Weights a = weights_of(24, 8, qkv), b = identity(8);
  Random random(9);
  AttentionSetup s(p, {{3, 0}}, random);
  s.packed = pack_attention(Layout::kTile16, {a.raw, b.raw, {}, {}, {}});
  for (int64_t i = 0; i < 24; ++i) s.x.set(i, i % 8 == 7 ? 1.f : static_cast<float>(i));
  run_reference<AttentionOp>(s.args(), 3);
  for (int row = 0; row < 3; ++row)
    for (int d = 0; d < 4; ++d) {
      const float mean = static_cast<float>(d) + 4.f * static_cast<float>(row);  // of v = 8 row' + d over rows 0..row
      EXPECT_FLOAT_EQ(s.partial.f32()[row * 8 + d], mean);
      EXPECT_EQ(s.partial.f32()[row * 8 + 4 + d], 0.f);
    }
}

// ---- gdn ------------------------------------------------------------------------------------------------------------

TEST(Reference, GdnChunkBordersAreInvisible) {
  for (const Activation activation : kActivations) {
    const GdnProblem p{.hidden = 32, .key_heads = 2, .value_heads = 4, .dk = 16, .dv = 16, .activation = activation};
    Random random(10);
    GdnSetup s(p, {{150, 0}, {1, 0}, {1, 0}}, random);
    // Only the first sequence, from nothing into slot 0.
    const auto run_piece = [&](int first, int count, int state_in, int state_out) {
      const BatchSequence sequence{0, count, first, nullptr, state_in, state_out};
      const Batch batch{count, 16, {&sequence, 1}};
      GdnArgs args = s.args();
      args.batch = &batch;
      args.x = {
          s.x.memory.data() + static_cast<size_t>(first) * 32 * size_of(s.x.view.dtype), s.x.view.dtype, {count, 32}};
      args.partial = {s.partial.f32() + first * 32, DType::kF32, {count, 32}};
      run_reference<GdnOp>(args, count, 2);
    };
    run_piece(0, 150, -1, 0);
    const std::vector<float> all(s.partial.f32(), s.partial.f32() + 150 * 32);
    const std::vector<float> state(s.state_of(0), s.state_of(1)), conv(s.conv_of(0), s.conv_of(1));
    for (const int step : {1, 7, 64}) {
      int slot = -1;
      for (int at = 0; at < 150; at += step) {
        const int next = at / step % 3 == 0 ? std::max(slot, 0) : (slot + 1) % 3;  // in place and to other slots
        run_piece(at, std::min(step, 150 - at), slot, next);
        slot = next;
      }
      EXPECT_EQ(std::memcmp(all.data(), s.partial.f32(), all.size() * 4), 0) << step;
      EXPECT_EQ(std::memcmp(state.data(), s.state_of(slot), state.size() * 4), 0) << step;
      EXPECT_EQ(std::memcmp(conv.data(), s.conv_of(slot), conv.size() * 4), 0) << step;
    }
  }
}

TEST(Reference, GdnForksAStateAndKeepsIt) {
  const GdnProblem p{.hidden = 32, .key_heads = 1, .value_heads = 2, .dk = 16, .dv = 16};
  Random random(11);
  GdnSetup s(p, {{2, 3}, {2, 3}, {2, 3}}, random);
  for (int64_t i = 0; i < 2 * 32; ++i)
    for (int64_t copy = 1; copy < 3; ++copy) s.x.set(copy * 64 + i, static_cast<float>(value_at(s.x.view, i)));
  // All three go on from slot 3: into 0, into 1, and in place.
  const int out[] = {0, 1, 3};
  for (size_t i = 0; i < 3; ++i) {
    s.batch.sequences[i].state_in = 3;
    s.batch.sequences[i].state_out = out[i];
  }
  run_reference<GdnOp>(s.args(), 6);
  const size_t state = static_cast<size_t>(p.value_heads * p.dk * p.dv) * 4,
               conv = static_cast<size_t>(p.channels() * 3) * 4;
  for (const int slot : {1, 3}) {
    EXPECT_EQ(std::memcmp(s.state_of(0), s.state_of(slot), state), 0);
    EXPECT_EQ(std::memcmp(s.conv_of(0), s.conv_of(slot), conv), 0);
  }
  EXPECT_EQ(std::memcmp(s.partial.f32(), s.partial.f32() + 64, 64 * 4), 0);
  EXPECT_EQ(std::memcmp(s.partial.f32(), s.partial.f32() + 128, 64 * 4), 0);
}

TEST(Reference, GdnNewSequencesIgnoreWhatTheSlotHeld) {
  const GdnProblem p{.hidden = 32, .key_heads = 1, .value_heads = 2, .dk = 16, .dv = 16};
  Random random(12);
  GdnSetup s(p, {{4, 0}}, random);
  std::vector<float> partials[2];
  for (std::vector<float>& partial : partials) {
    std::memset(s.state.memory.data(), &partial == partials ? 0 : 0x7F, s.state.view.bytes());  // zeros, then NaN
    std::memset(s.conv_state.memory.data(), &partial == partials ? 0 : 0xFF, s.conv_state.view.bytes());
    run_reference<GdnOp>(s.args(), 4);
    partial.assign(s.partial.f32(), s.partial.f32() + 4 * 32);
  }
  EXPECT_EQ(partials[0], partials[1]);
}

// Value head j reads key head j / (value_heads / key_heads): with the keys of key head 0 zero, the states of value
// heads 0 and 1 stay zero and the others do not.
TEST(Reference, GdnGroupsValueHeadsByKeyHead) {
  const GdnProblem p{
      .hidden = 32, .key_heads = 2, .value_heads = 4, .dk = 16, .dv = 16, .activation = Activation::kF32};
  Random random(13);
  GdnSetup s(p, {{3, 0}}, random);
  std::vector<float> conv(s.packed.conv.begin(), s.packed.conv.end());
  for (size_t ch = 32; ch < 48; ++ch)  // k of key head 0: behind 2 * 16 channels of q
    for (size_t j = 0; j < 4; ++j) conv[ch * 4 + j] = 0;
  s.packed.conv = FloatArray(conv);
  run_reference<GdnOp>(s.args(), 3);
  for (int h = 0; h < 4; ++h) {
    const float* state = s.state_of(0) + h * 256;
    const bool zero = std::all_of(state, state + 256, [](float v) { return v == 0; });
    EXPECT_EQ(zero, h < 2) << h;
  }
}

// Two rows of the recurrence written out in float64, with head sizes of one and identity projections.
TEST(Reference, GdnByHand) {
  const GdnProblem p{.hidden = 6,
                     .key_heads = 1,
                     .value_heads = 1,
                     .dk = 1,
                     .dv = 1,
                     .eps = 1e-6f,
                     .in_format = WeightFormat::kF32,
                     .ba_format = WeightFormat::kF32,
                     .out_format = WeightFormat::kF32,
                     .activation = Activation::kF32};
  std::vector<float> qkv(18), z(6), ba(12), out(6);
  for (size_t i = 0; i < 3; ++i) qkv[i * 6 + i] = 1;  // q, k, v are columns 0..2, z 3, b 4, a 5
  z[3] = 1;
  ba[4] = 1;
  ba[6 + 5] = 1;
  out[2] = 1;
  const Weights wq = weights_of(3, 6, qkv), wz = weights_of(1, 6, z), wb = weights_of(2, 6, ba),
                wo = weights_of(6, 1, out);
  Random random(14);
  GdnSetup s(p, {{2, 0}}, random);
  const std::vector<float> taps = {0, 0.5f, -1, 2, 0, 0, 1, 1, 0, 0, 0, 3};
  s.packed = pack_gdn(Layout::kTile16, {wq.raw, wz.raw, wb.raw, wo.raw, taps, {0.3f}, {-0.2f}, {1.5f}});
  const float x[2][6] = {{1, 2, -1, 0.5f, 1, 2}, {-2, 1, 3, -1, -0.5f, 0.25f}};
  for (int64_t i = 0; i < 12; ++i) s.x.set(i, x[i / 6][i % 6]);
  run_reference<GdnOp>(s.args(), 2);
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  double state = 0, before[3] = {};
  for (int r = 0; r < 2; ++r) {
    double c[3];
    for (size_t i = 0; i < 3; ++i) {
      const double sum =
          static_cast<double>(taps[i * 4 + 3]) * x[r][i] + static_cast<double>(taps[i * 4 + 2]) * before[i];
      c[i] = sum * sigmoid(sum);
      before[i] = x[r][i];
    }
    const double q = c[0] / std::sqrt(c[0] * c[0] + 1e-6), k = c[1] / std::sqrt(c[1] * c[1] + 1e-6);
    state *= std::exp(-std::exp(0.3) * std::log1p(std::exp(x[r][5] - 0.2)));
    state += k * sigmoid(x[r][4]) * (c[2] - state * k);
    const double o = state * q, n = o / std::sqrt(o * o + 1e-6);
    const double want = n * 1.5 * x[r][3] * sigmoid(x[r][3]);
    EXPECT_NEAR(s.partial.f32()[r * 6 + 2], want, 2e-6) << r;
    EXPECT_EQ(s.partial.f32()[r * 6 + 3], 0.f);
  }
  EXPECT_NEAR(*s.state_of(0), state, 1e-6);
  for (int64_t i = 0; i < 3; ++i) {  // the last three rows before the convolution, oldest first
    EXPECT_EQ(s.conv_of(0)[i * 3], 0.f);
    EXPECT_EQ(s.conv_of(0)[i * 3 + 1], x[0][i]);
    EXPECT_EQ(s.conv_of(0)[i * 3 + 2], x[1][i]);
  }
}

}  // namespace
}  // namespace mettle
