// Oracles and reference backends against the inputs and outputs of single blocks as transformers computed them in
// float32 (tests/data/tiny): other head counts, key heads != value heads, every weight format.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/json_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "ops/oracle.h"
#include "ops/oracle_test_support.h"

namespace mettle {
namespace {

using oracle_test::run_reference;

const char* const kFolders[] = {"qwen3_moe-bf16",         "qwen3_moe-mixed",  "qwen3_moe-nvfp4-modelopt",
                                "qwen3_moe-nvfp4-packed", "qwen3_5_moe-bf16", "qwen3_5_moe-nvfp4"};

// One tiny checkpoint, and one dumped block of it.
struct Golden {
  std::string folder, prefix;  // of the layer's tensors
  nlohmann::json config;       // text part
  bool qwen35 = false;
  std::unique_ptr<WeightSource> weights;
  Safetensors dumps;
  TensorView input, output;  // [tokens, hidden]

  Golden(const std::string& name, const std::string& kind)
      : folder(std::string(METTLE_SOURCE_DIR) + "/tests/data/tiny/" + name),
        dumps(Safetensors::open_file(folder + "/golden.safetensors")) {
    const nlohmann::json whole = read_json_object(folder + "/config.json");
    qwen35 = whole.contains("text_config");
    config = qwen35 ? whole["text_config"] : whole;
    weights = open_weights(folder, whole);
    const nlohmann::json golden = read_json_object(folder + "/golden.json");
    for (const nlohmann::json& block : golden["layers"]) {
      if (block["kind"] != kind) continue;
      prefix =
          (qwen35 ? "model.language_model.layers." : "model.layers.") + std::to_string(block["layer"].get<int>()) + ".";
      input = view(block["input"]);
      output = view(block["output"]);
    }
  }
  TensorView view(const std::string& name) const {
    const StoredTensor* t = dumps.find(name);
    CHECK(t != nullptr && t->dtype == DType::kF32 && t->shape.size() == 2, name);
    return {const_cast<uint8_t*>(t->data), t->dtype, Shape{t->shape[0], t->shape[1]}};
  }
  int number(const char* key, int otherwise = 0) const {
    return config.contains(key) && config[key].is_number() ? config[key].get<int>() : otherwise;
  }
  int tokens() const { return static_cast<int>(input.shape[0]); }
  int hidden() const { return static_cast<int>(input.shape[1]); }
  RawMatrix matrix(const std::string& name, int64_t rows, int64_t cols) {
    return weights->matrix(prefix + name, rows, cols);
  }
  std::vector<float> vector(const std::string& name, const Shape& shape) {
    return weights->vector(prefix + name, shape);
  }
};

// Largest difference, relative to the largest output.
template <class Got>
double error_of(const TensorView& want, const Got& got) {
  double worst = 0, top = 0;
  for (int64_t i = 0; i < want.shape.elements(); ++i) {
    const double w = static_cast<double>(want.as<float>()[i]);
    worst = std::max(worst, std::fabs(static_cast<double>(got[static_cast<size_t>(i)]) - w));
    top = std::max(top, std::fabs(w));
  }
  return worst / top;
}
constexpr double kClose = 1e-5;

RawMoe read_moe(Golden& g, const MoeProblem& p) {
  RawMoe raw;
  raw.router = {g.matrix("mlp.gate", p.experts, p.hidden)};
  const auto ffn = [&](const std::string& name, int width) {
    return RawExpert{{g.matrix(name + ".gate_proj", width, p.hidden), g.matrix(name + ".up_proj", width, p.hidden)},
                     {g.matrix(name + ".down_proj", p.hidden, width)}};
  };
  const bool fused = g.weights->has(g.prefix + "mlp.experts.gate_up_proj");
  for (int e = 0; e < p.experts; ++e) {
    if (fused) {
      raw.experts.push_back(
          {{g.matrix("mlp.experts.gate_up_proj", 2LL * p.experts * p.width, p.hidden)
                .slice_rows(2LL * e * p.width, 2LL * (e + 1) * p.width)},
           {g.matrix("mlp.experts.down_proj", static_cast<int64_t>(p.experts) * p.hidden, p.width)
                .slice_rows(static_cast<int64_t>(e) * p.hidden, static_cast<int64_t>(e + 1) * p.hidden)}});
    } else {
      raw.experts.push_back(ffn("mlp.experts." + std::to_string(e), p.width));
    }
  }
  if (p.shared_width > 0) {
    raw.shared = ffn("mlp.shared_expert", p.shared_width);
    raw.shared_gate = {g.matrix("mlp.shared_expert_gate", 1, p.hidden)};
  }
  return raw;
}

TEST(OracleGolden, Moe) {
  for (const char* folder : kFolders) {
    Golden g(folder, "moe");
    MoeProblem p{.hidden = g.hidden(),
                 .experts = g.number("num_experts", g.number("num_local_experts")),
                 .top_k = g.number("num_experts_per_tok"),
                 .width = g.number("moe_intermediate_size"),
                 .shared_width = g.number("shared_expert_intermediate_size"),
                 .activation = Activation::kF32};
    p.shared_gate = p.shared_width > 0;
    const RawMoe raw = read_moe(g, p);
    p.format = raw.experts[0].down[0].format;
    p.router_format = raw.router[0].format;
    if (p.shared_width > 0) p.shared_format = raw.shared.down[0].format;
    const auto pairs = static_cast<size_t>(g.tokens() * p.top_k);
    std::vector<int32_t> ids(pairs), got_ids(pairs);
    std::vector<float> weights(pairs), got_weights(pairs), got(static_cast<size_t>(g.output.shape.elements()));
    oracle::select(p, raw, g.input, ids.data(), weights.data());
    std::vector<int> rows;
    for (int i = 0; i < g.tokens(); ++i) rows.push_back(i);
    const Expected e = oracle::moe(p, raw, g.input, rows, ids.data(), {});
    EXPECT_LT(error_of(g.output, e.value), kClose) << folder;

    const MoeWeights packed = pack_moe(Layout::kTile16, raw);
    run_reference<MoeOp>({.problem = p,
                          .rows = g.tokens(),
                          .x = g.input,
                          .weights = &packed,
                          .partial = {got.data(), DType::kF32, g.output.shape},
                          .selection = {false, got_ids.data(), got_weights.data()},
                          .ws = {}},
                         g.tokens(), 2);
    EXPECT_LT(error_of(g.output, got), kClose) << folder;
    EXPECT_EQ(got_ids, ids) << folder;
    EXPECT_LT(oracle_test::worst_element(e, got.data()).sigmas, oracle_test::kHealthy) << folder;
  }
}

TEST(OracleGolden, Attention) {
  for (const char* folder : kFolders) {
    Golden g(folder, "attention");
    AttentionProblem p{.hidden = g.hidden(),
                       .heads = g.number("num_attention_heads"),
                       .kv_heads = g.number("num_key_value_heads"),
                       .head_dim = g.number("head_dim"),
                       .gate = g.qwen35,
                       .norm_plus_one = g.qwen35,
                       .eps = g.config["rms_norm_eps"].get<float>(),
                       .activation = Activation::kF32,
                       .block_size = 4};
    const nlohmann::json& rope = g.config["rope_parameters"];
    p.rotary_dim = static_cast<int>(p.head_dim * rope.value("partial_rotary_factor", 1.0));
    RawAttention raw;
    raw.qkv = {g.matrix("self_attn.q_proj", static_cast<int64_t>(p.heads) * p.head_dim * (p.gate ? 2 : 1), p.hidden),
               g.matrix("self_attn.k_proj", static_cast<int64_t>(p.kv_heads) * p.head_dim, p.hidden),
               g.matrix("self_attn.v_proj", static_cast<int64_t>(p.kv_heads) * p.head_dim, p.hidden)};
    raw.out = {g.matrix("self_attn.o_proj", p.hidden, static_cast<int64_t>(p.heads) * p.head_dim)};
    raw.q_norm = g.vector("self_attn.q_norm.weight", {p.head_dim});
    raw.k_norm = g.vector("self_attn.k_norm.weight", {p.head_dim});
    for (int i = 0; i < p.rotary_dim / 2; ++i)
      raw.inv_freq.push_back(static_cast<float>(std::pow(rope["rope_theta"].get<double>(), -2.0 * i / p.rotary_dim)));
    p.qkv_format = raw.qkv[0].format;
    p.out_format = raw.out[0].format;

    oracle_test::Random random(5);
    const oracle_test::RandomBatch batch({{g.tokens(), 0}}, p.block_size, random);
    Buffer k(static_cast<size_t>(batch.blocks * p.block_size * p.kv_heads * p.head_dim) * 4), v(k.size());
    const Shape cache{batch.blocks, p.block_size, p.kv_heads, p.head_dim};
    const TensorView k_cache{k.data(), DType::kF32, cache}, v_cache{v.data(), DType::kF32, cache};
    std::vector<float> got(static_cast<size_t>(g.output.shape.elements()));
    const AttentionWeights packed = pack_attention(Layout::kTile16, raw);
    run_reference<AttentionOp>({.problem = p,
                                .batch = &batch.batch,
                                .x = g.input,
                                .weights = &packed,
                                .k_cache = k_cache,
                                .v_cache = v_cache,
                                .partial = {got.data(), DType::kF32, g.output.shape},
                                .ws = {}},
                               g.tokens(), 2);
    EXPECT_LT(error_of(g.output, got), kClose) << folder;

    // The oracle reads keys and values from caches: here filled from its own appended rows.
    const oracle::AppendExpected append = oracle::attention_append(p, raw, batch.batch, g.input, {});
    const int64_t width = static_cast<int64_t>(p.kv_heads) * p.head_dim;
    for (int row = 0; row < g.tokens(); ++row)
      for (int64_t c = 0; c < width; ++c) {
        const int64_t at =
            (batch.tables[0][static_cast<size_t>(row / p.block_size)] * p.block_size + row % p.block_size) * width + c;
        const auto from = static_cast<size_t>(row * width + c);
        EXPECT_NEAR(k.as<float>()[at], append.k.value[from], 1e-5) << folder;
        EXPECT_NEAR(v.as<float>()[at], append.v.value[from], 1e-5) << folder;
        k.as<float>()[at] = static_cast<float>(append.k.value[from]);
        v.as<float>()[at] = static_cast<float>(append.v.value[from]);
      }
    std::vector<int> rows;
    for (int i = 0; i < g.tokens(); ++i) rows.push_back(i);
    const Expected e = oracle::attention(p, raw, batch.batch, g.input, k_cache, v_cache, rows, {});
    EXPECT_LT(error_of(g.output, e.value), kClose) << folder;
  }
}

TEST(OracleGolden, Gdn) {
  for (const char* folder : {"qwen3_5_moe-bf16", "qwen3_5_moe-nvfp4"}) {
    Golden g(folder, "gdn");
    GdnProblem p{.hidden = g.hidden(),
                 .key_heads = g.number("linear_num_key_heads"),
                 .value_heads = g.number("linear_num_value_heads"),
                 .dk = g.number("linear_key_head_dim"),
                 .dv = g.number("linear_value_head_dim"),
                 .conv = g.number("linear_conv_kernel_dim"),
                 .eps = g.config["rms_norm_eps"].get<float>(),
                 .activation = Activation::kF32};
    const int64_t values = static_cast<int64_t>(p.value_heads) * p.dv;
    RawGdn raw;
    raw.qkv = {g.matrix("linear_attn.in_proj_qkv", p.channels(), p.hidden)};
    raw.z = {g.matrix("linear_attn.in_proj_z", values, p.hidden)};
    raw.ba = {g.matrix("linear_attn.in_proj_b", p.value_heads, p.hidden),
              g.matrix("linear_attn.in_proj_a", p.value_heads, p.hidden)};
    raw.out = {g.matrix("linear_attn.out_proj", p.hidden, values)};
    raw.conv = g.vector("linear_attn.conv1d.weight", {p.channels(), 1, p.conv});
    raw.a_log = g.vector("linear_attn.A_log", {p.value_heads});
    raw.dt_bias = g.vector("linear_attn.dt_bias", {p.value_heads});
    raw.norm = g.vector("linear_attn.norm.weight", {p.dv});
    p.in_format = raw.qkv[0].format;
    p.ba_format = raw.ba[0].format;
    p.out_format = raw.out[0].format;
    const BatchSequence sequence{0, g.tokens(), 0, nullptr, -1, 1};
    const Batch batch{g.tokens(), 16, {&sequence, 1}};
    Buffer conv(static_cast<size_t>(2 * p.channels() * (p.conv - 1)) * 4),
        state(static_cast<size_t>(2 * values * p.dk) * 4);
    const TensorView conv_state{conv.data(), DType::kF32, {2, p.channels(), p.conv - 1}},
        states{state.data(), DType::kF32, {2, p.value_heads, p.dk, p.dv}};
    const oracle::GdnExpected e = oracle::gdn(p, raw, batch, g.input, conv_state, states, {});
    EXPECT_LT(error_of(g.output, e.partial.value), kClose) << folder;
    std::vector<float> got(static_cast<size_t>(g.output.shape.elements()));
    const GdnWeights packed = pack_gdn(Layout::kTile16, raw);
    run_reference<GdnOp>({.problem = p,
                          .batch = &batch,
                          .x = g.input,
                          .weights = &packed,
                          .conv_state = conv_state,
                          .state = states,
                          .partial = {got.data(), DType::kF32, g.output.shape},
                          .ws = {}},
                         g.tokens(), 2);
    EXPECT_LT(error_of(g.output, got), kClose) << folder;
  }
}

}  // namespace
}  // namespace mettle
