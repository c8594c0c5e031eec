// What is made of a checkpoint's formats on request: problems, bytes, the scales of an FP8 cache, what the plan says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/model_folder.h"
#include "engine/plan.h"
#include "engine/runner.h"
#include "engine/test_support.h"
#include "models/block.h"
#include "models/registry.h"

namespace mettle {
namespace {

using namespace mettle::testing;
using nlohmann::json;
using ::testing::HasSubstr;

// All experts are chosen: near logits stay near, where a rounding turns no choice.
const json kConfig = {{"architectures", {"Qwen3_5MoeForCausalLM"}},
                      {"model_type", "qwen3_5_moe_text"},
                      {"vocab_size", 500},
                      {"hidden_size", 64},
                      {"num_hidden_layers", 2},
                      {"max_position_embeddings", 512},
                      {"num_attention_heads", 4},
                      {"num_key_value_heads", 2},
                      {"head_dim", 16},
                      {"num_experts", 2},
                      {"num_experts_per_tok", 2},
                      {"moe_intermediate_size", 32},
                      {"linear_num_key_heads", 2},
                      {"linear_num_value_heads", 4},
                      {"linear_key_head_dim", 16},
                      {"linear_value_head_dim", 16},
                      {"full_attention_interval", 2},
                      {"shared_expert_intermediate_size", 32},
                      {"partial_rotary_factor", 0.5},
                      {"rope_theta", 10000.0}};
const std::string kLayer = "model.layers.1.self_attn";

// Dummy weights beside scales of the cache.
class Scaled : public WeightSource {
 public:
  explicit Scaled(std::map<std::string, float> scales)
      : inner_(dummy_weights(kConfig, 7)), scales_(std::move(scales)) {}
  bool has(std::string_view module) const override { return inner_->has(module); }
  bool has_tensor(std::string_view name) const override { return scales_.contains(std::string(name)); }
  RawMatrix matrix(const std::string& module, int64_t rows, int64_t cols, ThreadTeam* team) override {
    return inner_->matrix(module, rows, cols, team);
  }
  std::vector<float> vector(const std::string& name, const Shape& shape) override {
    if (!has_tensor(name)) return inner_->vector(name, shape);
    EXPECT_EQ(shape, Shape{1});
    return {scales_[name]};
  }
  void ignore(const std::string& prefix, const std::string&) override { ignored.push_back(prefix); }
  void release() override { inner_->release(); }
  void finish() override { inner_->finish(); }
  WeightFormat format_of(const std::string& module) const override { return inner_->format_of(module); }
  bool is_dummy() const override { return true; }
  std::vector<std::string> ignored;

 private:
  std::unique_ptr<WeightSource> inner_;
  std::map<std::string, float> scales_;
};

std::vector<float> logits_of(Scaled source, const ModelOptions& options, const std::string& backend = "first") {
  UnprovedChoices choices(backend);
  std::vector<std::unique_ptr<Model>> models;
  models.push_back(make_model(kConfig, source, options));
  models[0]->choose(choices);
  std::vector<std::unique_ptr<Place>> places;
  places.push_back(host_place());
  models[0]->load(source, *places[0], [](int64_t) {});
  return logits_of_a_prompt(std::move(models), std::move(places));
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    all += double{b[i]} * b[i];
  }
  return std::sqrt(difference / all);
}

const ModelOptions kCodes{.activation = Activation::kF32, .cache = CacheFormat::kE4M3};
std::map<std::string, float> scales(float k, float v) {
  return {{kLayer + ".k_proj.k_scale", k}, {kLayer + ".v_proj.v_scale", v}};
}

TEST(Formats, DenseFp8IsAboutTheDenseLayersAlone) {
  const std::unique_ptr<WeightSource> source = dummy_weights(kConfig, 7);
  const auto as_is = make_model(kConfig, *source, {}), fp8 = make_model(kConfig, *source, {.dense = DenseDtype::kFp8});
  EXPECT_EQ(as_is->info().requantised, 0);
  // qkv, z and out of one layer, q, k, v and o of the other, three of two shared experts, the head.
  EXPECT_EQ(fp8->info().requantised, 3 + 4 + 6 + 1);
  for (const AnyProblem& any : fp8->problems()) {
    if (const auto* p = std::get_if<AttentionProblem>(&any)) {
      EXPECT_EQ(p->qkv_format, WeightFormat::kFp8);
      EXPECT_EQ(p->out_format, WeightFormat::kFp8);
      EXPECT_EQ(p->cache, CacheFormat::kActivation);
    } else if (const auto* g = std::get_if<GdnProblem>(&any)) {
      EXPECT_EQ(g->in_format, WeightFormat::kFp8);
      EXPECT_EQ(g->out_format, WeightFormat::kFp8);
      EXPECT_EQ(g->ba_format, WeightFormat::kBf16);
    } else if (const auto* m = std::get_if<MoeProblem>(&any)) {
      EXPECT_EQ(m->shared_format, WeightFormat::kFp8);
      EXPECT_EQ(m->format, WeightFormat::kBf16);
      EXPECT_EQ(m->router_format, WeightFormat::kBf16);
    } else if (const auto* l = std::get_if<LinearProblem>(&any)) {
      EXPECT_EQ(l->format, WeightFormat::kFp8);
    }
  }
  // As a GPU packs them they are half as large where no padding is, but for the scale of each row.
  json wide = kConfig;
  wide["hidden_size"] = 256;
  const ModelOptions gpu{.device = DeviceKind::kCuda}, gpu_fp8{.device = DeviceKind::kCuda, .dense = DenseDtype::kFp8};
  EXPECT_LT(make_model(wide, *source, gpu_fp8)->weight_bytes().total(),
            make_model(wide, *source, gpu)->weight_bytes().total());
}

TEST(Formats, DenseFp8IsNearAndTheSameOnEveryRun) {
  const ModelOptions fp8{.activation = Activation::kF32, .dense = DenseDtype::kFp8};
  const std::vector<float> exact = logits_of(Scaled({}), {.activation = Activation::kF32}),
                           near = logits_of(Scaled({}), fp8);
  EXPECT_GT(distance(near, exact), 1e-3);
  EXPECT_LT(distance(near, exact), 0.15);
  EXPECT_EQ(logits_of(Scaled({}), fp8), near);
  EXPECT_LT(distance(logits_of(Scaled({}), fp8, "reference"), near), 1e-4);
}

TEST(Formats, AnFp8CacheTakesHalfTheBytes) {
  const std::unique_ptr<WeightSource> source = dummy_weights(kConfig, 7);
  std::vector<std::unique_ptr<Model>> bf16, codes;
  bf16.push_back(make_model(kConfig, *source, {}));
  codes.push_back(make_model(kConfig, *source, {.cache = CacheFormat::kE4M3}));
  EXPECT_EQ(cache_bytes_of(bf16).per_token, 2 * 2 * 16 * 2);
  EXPECT_EQ(cache_bytes_of(codes).per_token, 2 * 2 * 16);
  EXPECT_EQ(cache_bytes_of(codes).per_slot, cache_bytes_of(bf16).per_slot);
  AttentionProblem a{.hidden = 64}, b = a;
  b.cache = CacheFormat::kE4M3;
  EXPECT_NE(a.text(), b.text());  // verdicts and times are kept by it
  EXPECT_NE(a, b);
}

TEST(Formats, ScalesOfTheCacheAreThoseOfTheCheckpoint) {
  const std::vector<float> exact = logits_of(Scaled({}), {.activation = Activation::kF32}),
                           one = logits_of(Scaled({}), kCodes);
  EXPECT_GT(distance(one, exact), 1e-4);
  EXPECT_LT(distance(one, exact), 0.05);
  EXPECT_EQ(logits_of(Scaled(scales(1, 1)), kCodes), one);
  EXPECT_EQ(logits_of(Scaled(scales(0.5, 0.25)), kCodes).size(), one.size());
  for (const auto& [k, v] : {std::pair{0.05f, 0.02f}, {0.37f, 0.011f}}) {  // other codes, the same values
    const std::vector<float> scaled = logits_of(Scaled(scales(k, v)), kCodes);
    EXPECT_NE(scaled, one);
    EXPECT_LT(distance(scaled, exact), 0.05) << k << " " << v;
    EXPECT_LT(distance(logits_of(Scaled(scales(k, v)), kCodes, "reference"), scaled), 1e-3);
  }
  for (const auto& [k, v] : {std::pair{1e-6f, 1.f}, {1.f, 1e-6f}})
    EXPECT_GT(distance(logits_of(Scaled(scales(k, v)), kCodes), exact), 0.02) << "all of k or v saturates";
  // compressed-tensors' names.
  EXPECT_EQ(logits_of(Scaled({{kLayer + ".k_scale", 0.05f}, {kLayer + ".v_scale", 0.02f}}), kCodes),
            logits_of(Scaled(scales(0.05f, 0.02f)), kCodes));
}

TEST(Formats, ScalesThatAreNoneAreRefusedAndWithoutACacheOfCodesNotRead) {
  for (const float bad : {0.f, -0.5f}) try {
      logits_of(Scaled(scales(1, bad)), kCodes);
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kBadModel);
      EXPECT_THAT(e.message, HasSubstr(kLayer + ".v_proj.v_scale: must be above 0, is "));
    }
  EXPECT_EQ(logits_of(Scaled(scales(1, -0.5f)), {}), logits_of(Scaled({}), {}));
}

TEST(Formats, ThePlanSaysWhatIsAskedForAndWhatItFinds) {
  EngineOptions options;
  ModelInfo info;
  info.attention_layers = 15;
  EXPECT_EQ(formats_text(options, info), "");
  options.kv_cache = CacheFormat::kE4M3;
  info.scaled_layers = 2;
  EXPECT_THAT(formats_text(options, info), HasSubstr("fp8_e4m3: scales of the checkpoint in 2 of 15 attention layers"));
  options.dense = DenseDtype::kFp8;
  EXPECT_THAT(formats_text(options, info), HasSubstr("nothing to requantise"));
  info.requantised = 40;
  EXPECT_THAT(formats_text(options, info), HasSubstr("dense   fp8: 40 BF16 matrices"));
}

}  // namespace
}  // namespace mettle
