#include "models/qwen_config.h"

#include <fmt/format.h>

#include "base/error.h"

namespace mettle {

void expect_text(const ConfigReader& config, std::string_view key, std::string_view value) {
  const std::string got = config.text(key, value);
  if (got != value)
    fail(Code::kUnsupported, fmt::format("{}.{}: must be \"{}\", got \"{}\"", config.path(), key, value, got));
}

void expect_boolean(const ConfigReader& config, std::string_view key, bool value) {
  if (config.boolean(key, value) != value)
    fail(Code::kUnsupported, fmt::format("{}.{}: must be {}, got {}", config.path(), key, value, !value));
}

void expect_all_sparse(const ConfigReader& config) {
  const std::vector<int64_t> dense = config.integers("mlp_only_layers");
  if (!dense.empty())
    fail(Code::kUnsupported,
         fmt::format("{}.mlp_only_layers: must be empty (every layer has experts), got {} layers, first {}",
                     config.path(), dense.size(), dense.front()));
  const int64_t step = config.integer("decoder_sparse_step", 1, 1 << 20, 1);
  if (step != 1)
    fail(Code::kUnsupported,
         fmt::format("{}.decoder_sparse_step: must be 1 (every layer has experts), got {}", config.path(), step));
}

Rope read_rope(const ConfigReader& config) {
  Rope rope;
  rope.theta = config.number("rope_theta", 1, 1e12, rope.theta);
  rope.partial = config.number("partial_rotary_factor", 0.001, 1, rope.partial);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!config.has(key)) continue;
    const ConfigReader inner = config.child(key);
    expect_text(inner, "rope_type", "default");
    expect_text(inner, "type", "default");
    rope.theta = inner.number("rope_theta", 1, 1e12, rope.theta);
    rope.partial = inner.number("partial_rotary_factor", 0.001, 1, rope.partial);
  }
  return rope;
}

void read_common(const ConfigReader& config, DecoderSpec& spec) {
  const auto integer = [&](std::string_view key, int64_t most) {
    return static_cast<int>(config.integer(key, 1, most));
  };
  expect_text(config, "hidden_act", "silu");
  expect_boolean(config, "attention_bias", false);
  expect_all_sparse(config);
  ModelInfo& info = spec.info;
  info.vocab = integer("vocab_size", 1 << 22);
  info.hidden = integer("hidden_size", 1 << 16);
  info.layers = integer("num_hidden_layers", 1024);
  info.context = integer("max_position_embeddings", 1 << 24);
  spec.eps = static_cast<float>(config.number("rms_norm_eps", 0, 1, 1e-6));

  AttentionShape& a = spec.attention;
  a.heads = integer("num_attention_heads", 1024);
  a.kv_heads = static_cast<int>(config.integer("num_key_value_heads", 1, 1024, a.heads));
  if (a.heads % a.kv_heads != 0)
    fail(Code::kBadModel,
         fmt::format("{}.num_attention_heads: must be a multiple of num_key_value_heads, got {} and {}", config.path(),
                     a.heads, a.kv_heads));
  if (!config.has("head_dim") && info.hidden % a.heads != 0)
    fail(Code::kBadModel, fmt::format("{}.head_dim: absent, and hidden_size {} is no multiple of {} heads",
                                      config.path(), info.hidden, a.heads));
  a.head_dim = static_cast<int>(config.integer("head_dim", 2, 4096, info.hidden / a.heads));
  const Rope rope = read_rope(config);
  a.rope_theta = rope.theta;
  a.rotary_dim = static_cast<int>(a.head_dim * rope.partial);
  if (a.rotary_dim < 2 || a.rotary_dim % 2 != 0)
    fail(Code::kUnsupported,
         fmt::format("{}: rotated dimensions must be even and at least 2, got {} (head_dim {} x {})", config.path(),
                     a.rotary_dim, a.head_dim, rope.partial));

  MoeShape& m = spec.moe;
  // Newer exporters of qwen3_moe call them local.
  m.experts = integer(config.has("num_experts") ? "num_experts" : "num_local_experts", 4096);
  m.top_k = static_cast<int>(config.integer("num_experts_per_tok", 1, m.experts));
  m.width = integer("moe_intermediate_size", 1 << 20);
}

}  // namespace mettle
