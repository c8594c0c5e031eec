#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/model_folder.h"
#include "checkpoint/toy_checkpoint.h"
#include "checkpoint/weight_source.h"

namespace mettle {
namespace {

using nlohmann::json;

json tiny_config() { return open_model_folder(METTLE_SOURCE_DIR "/models/mettle-tiny").config; }

json qwen3(const json& quantization = nullptr) {
  return {{"model_type", "qwen3_moe"}, {"quantization_config", quantization}};
}

json unquantised_qwen3_5(int mtp_layers = 1) {
  return {{"model_type", "qwen3_5_moe"}, {"text_config", {{"mtp_num_hidden_layers", mtp_layers}}}};
}

struct Moments {
  double mean = 0, deviation = 0;
};

Moments moments_of(const std::vector<float>& values) {
  Moments m;
  for (const float v : values) m.mean += v / static_cast<double>(values.size());
  for (const float v : values) m.deviation += (v - m.mean) * (v - m.mean) / static_cast<double>(values.size());
  m.deviation = std::sqrt(m.deviation);
  return m;
}

std::vector<float> values_of(const RawMatrix& m) {
  std::vector<float> values;
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t c = 0; c < m.cols; ++c) values.push_back(static_cast<float>(m.at(r, c)));
  return values;
}

TEST(DummyWeights, EveryFormatHasUnitGain) {
  const std::pair<json, WeightFormat> formats[] = {
      {qwen3(), WeightFormat::kBf16},
      {json{{"model_type", "qwen3_moe"}, {"dtype", "float32"}}, WeightFormat::kF32},
      {qwen3({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}), WeightFormat::kNvfp4},
      {qwen3({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}), WeightFormat::kFp8},
      {qwen3({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}), WeightFormat::kFp8Block}};
  for (const auto& [config, format] : formats) {
    const auto source = dummy_weights(config, 1);
    EXPECT_TRUE(source->is_dummy());
    EXPECT_EQ(source->format_of("model.layers.0.mlp.up_proj"), format);
    const RawMatrix m = source->matrix("model.layers.0.mlp.up_proj", 257, 272);
    EXPECT_EQ(m.format, format);
    const Moments found = moments_of(values_of(m));
    // Nine random block scales between 0.75 and 1.25 leave a standard error of 0.05.
    const double tolerance = format == WeightFormat::kFp8Block ? 0.15 : 0.03;
    EXPECT_NEAR(found.deviation * std::sqrt(272.0), 1, tolerance) << name_of(format);
    EXPECT_NEAR(found.mean * std::sqrt(272.0), 0, 0.02) << name_of(format);
    for (const float v : values_of(m)) ASSERT_TRUE(std::isfinite(v));
  }
}

TEST(DummyWeights, BytesDependOnSeedAndNameAlone) {
  const auto one = dummy_weights(tiny_config(), 7), two = dummy_weights(tiny_config(), 7),
             other = dummy_weights(tiny_config(), 8);
  const std::string a = "model.language_model.layers.0.mlp.experts.0.up_proj",
                    b = "model.language_model.layers.0.mlp.experts.1.up_proj";
  two->matrix(b, 32, 64);
  two->release();
  const auto first = values_of(one->matrix(a, 32, 64));
  EXPECT_EQ(first, values_of(two->matrix(a, 32, 64)));
  EXPECT_NE(first, values_of(one->matrix(b, 32, 64)));
  EXPECT_NE(first, values_of(other->matrix(a, 32, 64)));
  EXPECT_EQ(one->vector("x.norm.weight", {5}), two->vector("x.norm.weight", {5}));
  // The generator must give the same bytes on every machine and in every version.
  const auto raw = one->matrix(a, 32, 64);
  EXPECT_EQ(raw.format, WeightFormat::kNvfp4);
  uint64_t hash = 0;
  for (int64_t i = 0; i < 32 * 32; ++i) hash = hash * 31 + raw.data[i];
  for (int64_t i = 0; i < 32 * 4; ++i) hash = hash * 31 + raw.scales[i];
  EXPECT_EQ(hash, 5616682757146474189u);
}

// All bytes of a matrix.
std::vector<uint8_t> bytes_of(const RawMatrix& m) {
  std::vector<uint8_t> bytes(m.data, m.data + m.rows * m.row_bytes);
  const int64_t scale_rows = m.scales == nullptr                   ? 0
                             : m.format == WeightFormat::kFp8Block ? (m.rows + 127) / 128
                                                                   : m.rows;
  bytes.insert(bytes.end(), m.scales, m.scales + scale_rows * m.scale_row_bytes);
  return bytes;
}

TEST(DummyWeights, BytesDoNotDependOnThreads) {
  const json configs[] = {qwen3(), json{{"model_type", "qwen3_moe"}, {"dtype", "float32"}},
                          qwen3({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}),
                          qwen3({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}),
                          qwen3({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}})};
  for (const json& config : configs) {
    const std::string module = "model.layers.0.mlp.up_proj";
    const auto serial = dummy_weights(config, 3);
    const auto alone = bytes_of(serial->matrix(module, 1999, 1040));
    for (const int members : {1, 2, 3, 7}) {
      const auto source = dummy_weights(config, 3);  // whose memory holds nothing yet
      ThreadTeam team(members);
      EXPECT_EQ(alone, bytes_of(source->matrix(module, 1999, 1040, &team))) << members;
      // Members that read at the same time, each its own.
      std::vector<std::vector<uint8_t>> each(static_cast<size_t>(members));
      team.run([&](int member) {
        source->matrix("other" + std::to_string(member), 130, 144);
        each[static_cast<size_t>(member)] = bytes_of(source->matrix(module, 1999, 1040));
      });
      for (const auto& bytes : each) EXPECT_EQ(alone, bytes);
    }
  }
}

TEST(DummyWeights, OddSizesAreFilled) {
  const auto source = dummy_weights(qwen3(), 1);
  for (const int64_t cols : {1, 2, 3, 5, 7}) {
    const auto values = values_of(source->matrix("m", 3, cols));
    EXPECT_NE(values.back(), 0.f) << cols;
  }
  expect_error(Code::kBadModel, {"m: must have at least one row", "[0, 4]"}, [&] { source->matrix("m", 0, 4); });
  expect_error(Code::kBadModel, {"v: must have at least one element"}, [&] { source->vector("v", {0}); });
  const auto nvfp4 = dummy_weights(qwen3({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}), 1);
  expect_error(Code::kBadModel, {"m: 24 columns are not a multiple of 16"}, [&] { nvfp4->matrix("m", 4, 24); });
}

TEST(DummyWeights, ReleaseKeepsTheBytesOfLaterMatricesRight) {
  const auto source = dummy_weights(qwen3(), 1);
  const auto before = values_of(source->matrix("m", 700, 900));
  source->matrix("n", 700, 900);
  source->release();
  source->matrix("o", 700, 900);
  EXPECT_EQ(before, values_of(source->matrix("m", 700, 900)));
  source->finish();
}

TEST(DummyWeights, EmbeddingsAndRoutersAreNotQuantised) {
  const auto source = dummy_weights(qwen3({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}), 1);
  for (const char* module : {"model.embed_tokens", "model.layers.0.mlp.gate", "model.layers.0.mlp.shared_expert_gate"})
    EXPECT_EQ(source->format_of(module), WeightFormat::kBf16) << module;
  EXPECT_EQ(source->format_of("model.layers.0.mlp.gate_proj"), WeightFormat::kNvfp4);
}

TEST(DummyWeights, HasWhatTheConfigImplies) {
  const auto nested = dummy_weights(tiny_config(), 1);
  const std::string layer = "model.language_model.layers.0.";
  EXPECT_TRUE(nested->has("model.language_model.embed_tokens"));
  EXPECT_FALSE(nested->has("model.embed_tokens"));
  EXPECT_FALSE(nested->has("language_model.model.embed_tokens"));
  EXPECT_TRUE(nested->has("lm_head"));
  EXPECT_TRUE(nested->has(layer + "mlp.experts.0.up_proj"));
  EXPECT_FALSE(nested->has(layer + "mlp.experts.gate_up_proj"));
  EXPECT_FALSE(nested->has("model.visual.blocks.0.attn.qkv"));
  EXPECT_TRUE(nested->has("mtp.fc"));
  EXPECT_TRUE(nested->has("mtp.layers.0.mlp.experts.gate_up_proj"));  // ignored by the config, so not quantised
  EXPECT_FALSE(nested->has("mtp.layers.0.mlp.experts.0.up_proj"));
  EXPECT_FALSE(nested->has("model.mtp.fc"));
  EXPECT_FALSE(nested->has(layer + "self_attn.q_proj.bias"));
  EXPECT_FALSE(nested->has(layer + "self_attn.k_proj.k_scale"));

  const auto fused = dummy_weights(unquantised_qwen3_5(), 1);
  EXPECT_TRUE(fused->has(layer + "mlp.experts.gate_up_proj"));
  EXPECT_FALSE(fused->has(layer + "mlp.experts.0.up_proj"));
  EXPECT_FALSE(dummy_weights(unquantised_qwen3_5(0), 1)->has("mtp.fc"));

  const auto flat = dummy_weights(qwen3(), 1);
  EXPECT_TRUE(flat->has("model.embed_tokens"));
  EXPECT_FALSE(flat->has("model.language_model.embed_tokens"));
  EXPECT_TRUE(flat->has("model.layers.0.mlp.experts.0.up_proj"));
  EXPECT_FALSE(flat->has("model.layers.0.mlp.experts.gate_up_proj"));
  EXPECT_FALSE(flat->has("mtp.fc"));
  json tied = qwen3();
  tied["tie_word_embeddings"] = true;
  EXPECT_FALSE(dummy_weights(tied, 1)->has("lm_head"));
}

TEST(DummyWeights, VectorsAreWhatTheModelExpects) {
  const auto adds_one = dummy_weights(unquantised_qwen3_5(), 1), plain = dummy_weights(qwen3(), 1);
  const auto near = [](WeightSource& source, const std::string& name, double mean, double deviation) {
    const Moments m = moments_of(source.vector(name, {4000}));
    EXPECT_NEAR(m.mean, mean, 0.05) << name;
    EXPECT_NEAR(m.deviation, deviation, 0.05 * deviation) << name;
  };
  near(*adds_one, "model.language_model.layers.0.input_layernorm.weight", 0, 0.02);
  near(*adds_one, "model.language_model.layers.0.self_attn.q_norm.weight", 0, 0.02);
  near(*adds_one, "mtp.pre_fc_norm_hidden.weight", 0, 0.02);
  near(*adds_one, "model.language_model.norm.weight", 0, 0.02);
  near(*adds_one, "model.language_model.layers.0.linear_attn.norm.weight", 1, 0.02);
  near(*plain, "model.layers.0.input_layernorm.weight", 1, 0.02);
  near(*plain, "model.norm.weight", 1, 0.02);
  near(*plain, "model.layers.0.self_attn.q_proj.bias", 0, 0.02);
  near(*adds_one, "model.language_model.layers.0.linear_attn.conv1d.weight", 0, 0.5);
  near(*adds_one, "model.language_model.layers.0.linear_attn.dt_bias", -2.5, 3 / std::sqrt(12.0));
  const auto a_log = adds_one->vector("model.language_model.layers.0.linear_attn.A_log", {1000});
  for (const float a : a_log) {
    ASSERT_GE(std::exp(a), 1.f);
    ASSERT_LE(std::exp(a), 16.001f);
  }
}

}  // namespace
}  // namespace mettle
