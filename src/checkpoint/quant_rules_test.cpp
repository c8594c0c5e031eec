#include "checkpoint/quant_rules.h"

#include <gtest/gtest.h>

#include "checkpoint/name_pattern.h"
#include "checkpoint/toy_checkpoint.h"

namespace mettle {
namespace {

using nlohmann::json;

QuantRules rules_of(const std::string& quantization) {
  return QuantRules(json{{"quantization_config", json::parse(quantization)}});
}

void expect_refused(Code code, std::initializer_list<std::string> pieces, const std::string& quantization) {
  expect_error(code, pieces, [&] { rules_of(quantization); });
}

TEST(QuantRules, NoneMeansTheModelsDtype) {
  EXPECT_EQ(QuantRules(json::object()).method(), "none");
  EXPECT_EQ(QuantRules(json::object()).format_of("model.layers.0.mlp.up_proj"), WeightFormat::kBf16);
  EXPECT_EQ(QuantRules(json{{"dtype", "float32"}}).format_of("x"), WeightFormat::kF32);
  EXPECT_EQ(QuantRules(json{{"torch_dtype", "float32"}}).format_of("x"), WeightFormat::kF32);
  EXPECT_EQ(QuantRules(json{{"text_config", {{"dtype", "float32"}}}}).format_of("x"), WeightFormat::kF32);
  EXPECT_EQ(QuantRules(json{{"quantization_config", nullptr}}).method(), "none");
  EXPECT_EQ(rules_of(R"({"quant_method": "modelopt", "quant_algo": null})").format_of("x"), WeightFormat::kBf16);
}

TEST(QuantRules, ModelOptWithIgnoredModules) {
  const QuantRules rules = rules_of(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
      "ignore": ["lm_head", "model.layers.0.linear_attn*", "*.mlp.shared_expert.*", "mlp.gate", "mtp*", "model.visual*"]})");
  EXPECT_EQ(rules.method(), "modelopt");
  const WeightFormat plain = WeightFormat::kBf16, nvfp4 = WeightFormat::kNvfp4;
  EXPECT_EQ(rules.format_of("lm_head"), plain);
  EXPECT_EQ(rules.format_of("model.layers.0.linear_attn.in_proj_qkv"), plain);
  EXPECT_EQ(rules.format_of("model.layers.1.linear_attn.in_proj_qkv"), nvfp4);
  EXPECT_EQ(rules.format_of("model.layers.7.mlp.shared_expert.up_proj"), plain);
  EXPECT_EQ(rules.format_of("model.layers.7.mlp.shared_expert_gate"), nvfp4);
  EXPECT_EQ(rules.format_of("model.layers.7.mlp.gate"), plain);
  EXPECT_EQ(rules.format_of("model.layers.7.mlp.gate_proj"), nvfp4);
  EXPECT_EQ(rules.format_of("mtp.layers.0.mlp.experts.gate_up_proj"), plain);
  EXPECT_EQ(rules.format_of("model.visual.blocks.0.attn.qkv"), plain);
  EXPECT_EQ(rules.format_of("model.layers.3.mlp.experts.17.down_proj"), nvfp4);
}

TEST(QuantRules, PrefixesOfConfigAndFileMayDiffer) {
  const QuantRules rules = rules_of(R"({"quant_method": "modelopt", "quant_algo": "NVFP4",
      "exclude_modules": ["model.layers.0.self_attn*", "language_model.lm_head"]})");
  EXPECT_EQ(rules.format_of("model.language_model.layers.0.self_attn.q_proj"), WeightFormat::kBf16);
  EXPECT_EQ(rules.format_of("language_model.model.layers.0.self_attn.q_proj"), WeightFormat::kBf16);
  EXPECT_EQ(rules.format_of("lm_head"), WeightFormat::kBf16);
  EXPECT_EQ(rules.format_of("model.language_model.layers.10.self_attn.q_proj"), WeightFormat::kNvfp4);
}

TEST(QuantRules, MixedPrecisionNamesLayersByPrefix) {
  const QuantRules rules = rules_of(R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
      "config_groups": {"group_0": {"weights": {"num_bits": 8}}},
      "quantized_layers": {"model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                           "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                           "model.layers.0.self_attn": {"quant_algo": "FP8_PB_WO"},
                           "lm_head": {"quant_algo": "NVFP4"}},
      "ignore": ["*experts*"]})");
  EXPECT_EQ(rules.format_of("model.layers.0.mlp.experts.3.up_proj"), WeightFormat::kNvfp4);
  EXPECT_EQ(rules.format_of("model.layers.0.self_attn.q_proj"), WeightFormat::kFp8);
  EXPECT_EQ(rules.format_of("model.layers.0.self_attn.k_proj"), WeightFormat::kFp8Block);
  EXPECT_EQ(rules.format_of("lm_head"), WeightFormat::kNvfp4);
  EXPECT_EQ(rules.format_of("model.layers.1.mlp.up_proj"), WeightFormat::kBf16);
}

TEST(QuantRules, CompressedTensors) {
  const std::string nvfp4 = R"({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16})";
  const QuantRules rules =
      rules_of(R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
      "group_0": {"targets": ["Linear"], "weights": )" +
               nvfp4 + R"(},
      "group_1": {"targets": ["re:.*self_attn\\.(q|k)_proj$"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
      "group_2": {"targets": ["model.layers.4.mlp.down_proj"],
                  "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}}},
      "ignore": ["lm_head", "re:.*mlp\\.gate$"]})");
  EXPECT_EQ(rules.method(), "compressed-tensors");
  EXPECT_EQ(rules.format_of("model.layers.4.self_attn.q_proj"), WeightFormat::kFp8);
  EXPECT_EQ(rules.format_of("model.layers.4.self_attn.q_proj.inner"), WeightFormat::kNvfp4);
  EXPECT_EQ(rules.format_of("model.layers.4.self_attn.v_proj"), WeightFormat::kNvfp4);
  EXPECT_EQ(rules.format_of("model.layers.4.mlp.down_proj"), WeightFormat::kFp8Block);
  EXPECT_EQ(rules.format_of("model.layers.4.mlp.gate"), WeightFormat::kBf16);
  EXPECT_EQ(rules.format_of("model.layers.4.mlp.gate_proj"), WeightFormat::kNvfp4);
}

TEST(QuantRules, Fp8Releases) {
  const QuantRules blocks = rules_of(R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
      "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]})");
  EXPECT_EQ(blocks.format_of("model.layers.0.mlp.up_proj"), WeightFormat::kFp8Block);
  EXPECT_EQ(blocks.format_of("lm_head"), WeightFormat::kBf16);
  EXPECT_EQ(rules_of(R"({"quant_method": "fp8"})").format_of("x.y"), WeightFormat::kFp8);
}

TEST(QuantRules, RefusesWhatNobodyReadsNamingPatternAndAlgorithm) {
  expect_refused(Code::kUnsupported, {"quant_method", "\"gptq\"", "compressed-tensors"}, R"({"quant_method": "gptq"})");
  expect_refused(Code::kUnsupported, {"quant_method", "\"\""}, R"({"bits": 4})");
  for (const char* algorithm : {"nonsense", "MXFP8", "MXFP4", "INT4_AWQ", "NVFP4_AWQ", "W8A8_SQ_PER_CHANNEL", "nvfp4"})
    expect_refused(Code::kUnsupported, {"quant_algo", algorithm, "all linear modules", "W4A16_NVFP4"},
                   json{{"quant_method", "modelopt"}, {"quant_algo", algorithm}}.dump());
  expect_refused(Code::kUnsupported, {"quantized_layers.model.layers.5.mlp", "MXFP8", "for model.layers.5.mlp"},
                 R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                     "quantized_layers": {"model.layers.5.mlp": {"quant_algo": "MXFP8"}}})");
  expect_refused(Code::kUnsupported, {"group_size", "NVFP4", "32"},
                 R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32})");
  expect_refused(Code::kUnsupported, {"config_groups.g.weights", "int 4-bit", "Linear"},
                 R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"],
                     "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}}})");
  expect_refused(Code::kUnsupported, {"float 4-bit", "group_size 32"},
                 R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"],
                     "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}}}})");
  expect_refused(Code::kUnsupported, {"weight_block_size", "[128, 128]", "[64,64]"},
                 R"({"quant_method": "fp8", "weight_block_size": [64, 64]})");
  expect_refused(Code::kUnsupported, {"fmt", "e5m2"}, R"({"quant_method": "fp8", "fmt": "e5m2"})");
}

TEST(QuantRules, RefusesMalformedConfigs) {
  expect_refused(Code::kBadModel, {"config.quantization_config: must be an object"}, "[]");
  expect_refused(Code::kBadModel, {"quantized_layers: must be an object, is missing"},
                 R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})");
  expect_refused(Code::kBadModel, {"ignore", "list of strings"}, R"({"quant_method": "modelopt", "ignore": [1]})");
  expect_refused(Code::kBadModel, {"ignore", "1 to 4096 bytes, has 0"},
                 R"({"quant_method": "modelopt", "ignore": [""]})");
  expect_refused(Code::kBadModel, {"config_groups.g.targets", "names none"},
                 R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": [], "weights": {}}}})");
  expect_refused(Code::kBadModel, {"re:(", "not a regular expression"},
                 R"({"quant_method": "modelopt", "ignore": ["re:("]})");
}

TEST(QuantRules, AHostileExpressionEnds) {
  const QuantRules rules =
      rules_of(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["re:(a|aa)+$"]})");
  // 24: too much for our limit, but not for the library's own of ten million.
  expect_error(Code::kBadModel, {"(a|aa)+$", "takes too long"}, [&] { rules.format_of(std::string(24, 'a') + "c"); });
}

TEST(NamePattern, Globs) {
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("", ""));
  EXPECT_FALSE(glob_matches("", "a"));
  EXPECT_TRUE(glob_matches("a*b*c", "a.x.b.y.c"));
  EXPECT_FALSE(glob_matches("a*b*c", "a.x.b.y.c.d"));
  EXPECT_TRUE(glob_matches("*a*a*b", "aaaaab"));
  EXPECT_TRUE(glob_matches("l?yer", "layer"));
  EXPECT_FALSE(glob_matches("l?yer", "lyer"));
  EXPECT_TRUE(glob_matches("layers.[0-2].x", "layers.1.x"));
  EXPECT_FALSE(glob_matches("layers.[0-2].x", "layers.3.x"));
  EXPECT_TRUE(glob_matches("layers.[!0-2].x", "layers.3.x"));
  EXPECT_TRUE(glob_matches("a[", "a["));
  EXPECT_FALSE(glob_matches("a[b", "ab"));
  EXPECT_FALSE(glob_matches("model.layers.1", "model.layers.10"));
  EXPECT_FALSE(glob_matches(std::string(2000, '*') + "b", std::string(20'000, 'a')));
}

TEST(NamePattern, PlainNames) {
  const NamePattern p("model.layers.1", "test");
  EXPECT_TRUE(p.matches("model.layers.1"));
  EXPECT_TRUE(p.matches("model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(p.matches("model.layers.10.mlp.up_proj"));
  EXPECT_FALSE(p.matches("model.layers"));
  EXPECT_TRUE(NamePattern("mlp.gate", "test").matches("model.layers.1.mlp.gate"));
  EXPECT_FALSE(NamePattern("lp.gate", "test").matches("model.layers.1.mlp.gate"));
}

}  // namespace
}  // namespace mettle
