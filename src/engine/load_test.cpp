// What a source hands out is its own again after release(): a load that packs a matrix later serves whatever lies there
// by then. Each model is loaded from a source that keeps everything, and from one that spoils what was released.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/runner.h"
#include "engine/test_support.h"
#include "models/block.h"
#include "models/registry.h"

namespace mettle {
namespace {

using namespace mettle::testing;
using nlohmann::json;

// Dummy weights in memory of its own.
class LentWeights : public WeightSource {
 public:
  LentWeights(const json& config, bool spoil) : inner_(dummy_weights(config, 7)), spoil_(spoil) {}

  bool has(std::string_view module) const override { return inner_->has(module); }
  RawMatrix matrix(const std::string& module, int64_t rows, int64_t cols, ThreadTeam* team) override {
    RawMatrix m = inner_->matrix(module, rows, cols, team);
    m.data = lend(m.data, m.rows * m.row_bytes);
    if (m.scales != nullptr)
      m.scales = lend(m.scales, (m.format == WeightFormat::kNvfp4 ? m.rows : (m.rows + 127) / 128) * m.scale_row_bytes);
    return m;
  }
  std::vector<float> vector(const std::string& name, const Shape& shape) override {
    return inner_->vector(name, shape);
  }
  void ignore(const std::string& prefix, const std::string& why) override { inner_->ignore(prefix, why); }
  void release() override {
    ++releases;
    if (!spoil_) return;
    const std::lock_guard lock(mutex_);
    for (auto& bytes : lent_) std::fill(bytes.begin(), bytes.end(), uint8_t{0xFF});  // NaN in every format but nvfp4
  }
  void finish() override { inner_->finish(); }
  WeightFormat format_of(const std::string& module) const override { return inner_->format_of(module); }
  bool is_dummy() const override { return true; }

  int releases = 0;

 private:
  const uint8_t* lend(const uint8_t* data, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    lent_.emplace_back(data, data + bytes);
    return lent_.back().data();
  }

  std::unique_ptr<WeightSource> inner_;
  bool spoil_;
  std::mutex mutex_;  // threads ask for experts at the same time
  std::deque<std::vector<uint8_t>> lent_;
};

std::vector<float> logits_of(const json& config, int ranks, bool spoil) {
  LentWeights source(config, spoil);
  UnprovedChoices choices("cpu_gemv");
  std::vector<std::unique_ptr<Model>> models;
  std::vector<std::unique_ptr<Place>> places;
  for (int rank = 0; rank < ranks; ++rank) {
    models.push_back(make_model(config, source, {.activation = Activation::kF32, .rank = rank, .ranks = ranks}));
    models.back()->choose(choices);
    places.push_back(host_place());
    models.back()->load(source, *places.back(), [](int64_t) {});
  }
  EXPECT_GT(source.releases, ranks);
  return logits_of_a_prompt(std::move(models), std::move(places));
}

void expect_the_same(const json& config) {
  for (const int ranks : {1, 2}) {
    const std::vector<float> kept = logits_of(config, ranks, false);
    for (const float x : kept) ASSERT_TRUE(std::isfinite(x));
    EXPECT_GT(*std::max_element(kept.begin(), kept.end()), 0.1f);
    EXPECT_EQ(logits_of(config, ranks, true), kept) << ranks << " ranks";
  }
}

const json kQuantised = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};

json qwen3() {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"model_type", "qwen3_moe"},
          {"vocab_size", 500},
          {"hidden_size", 64},
          {"num_hidden_layers", 2},
          {"max_position_embeddings", 512},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"num_experts", 6},
          {"num_experts_per_tok", 2},
          {"moe_intermediate_size", 80},
          {"norm_topk_prob", true},
          {"rope_theta", 10000.0}};
}

json qwen3_5() {
  json config = qwen3();
  config["architectures"] = {"Qwen3_5MoeForCausalLM"};
  config["model_type"] = "qwen3_5_moe_text";
  config.update({{"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 16},
                 {"linear_value_head_dim", 32},
                 {"full_attention_interval", 2},
                 {"shared_expert_intermediate_size", 32},
                 {"partial_rotary_factor", 0.5}});
  return config;
}

TEST(Load, NothingIsPackedFromMemoryGivenBackQwen3Moe) {
  expect_the_same(qwen3());
  json quantised = qwen3();
  quantised["quantization_config"] = kQuantised;
  expect_the_same(quantised);
}

TEST(Load, NothingIsPackedFromMemoryGivenBackQwen35Moe) {  // experts in one tensor, or one by one
  expect_the_same(qwen3_5());
  json quantised = qwen3_5();
  quantised["quantization_config"] = kQuantised;
  expect_the_same(quantised);
}

}  // namespace
}  // namespace mettle
