// The small checkpoints of tests/data/tiny, exported by other people's code: every tensor is read or named, and an MoE
// block computed here in float64 from what was read is the one that transformers computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/json_file.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/toy_checkpoint.h"
#include "checkpoint/weight_source.h"

namespace mettle {
namespace {

using nlohmann::json;
using Vector = std::vector<double>;

class Tiny : public testing::TestWithParam<const char*> {
 protected:
  std::string path_ = std::string(METTLE_SOURCE_DIR "/tests/data/tiny/") + GetParam();
  ModelFolder folder_ = open_model_folder(path_);
  bool nested_ = folder_.config.contains("text_config");
  const json& text_ = nested_ ? folder_.config.at("text_config") : folder_.config;
  std::string prefix_ = nested_ ? "model.language_model." : "model.";
  int64_t field(const char* name) const { return text_.at(name).get<int64_t>(); }
  // transformers has written either name for qwen3_moe.
  int64_t experts() const { return field(text_.contains("num_experts") ? "num_experts" : "num_local_experts"); }
};

Vector times(const RawMatrix& w, const Vector& x) {
  Vector y(static_cast<size_t>(w.rows));
  for (int64_t r = 0; r < w.rows; ++r)
    for (int64_t c = 0; c < w.cols; ++c) y[static_cast<size_t>(r)] += w.at(r, c) * x[static_cast<size_t>(c)];
  return y;
}

Vector swiglu(const Vector& gate, const Vector& up) {
  Vector h(gate.size());
  for (size_t i = 0; i < h.size(); ++i) h[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  return h;
}

// Reads the rows of a [tokens, hidden] F32 tensor.
std::vector<Vector> rows_of(const StoredTensor& t) {
  std::vector<Vector> rows(static_cast<size_t>(t.shape[0]), Vector(static_cast<size_t>(t.shape[1])));
  const auto* p = t.data;
  for (Vector& row : rows)
    for (double& value : row) {
      float f = 0;
      std::memcpy(&f, p, 4);
      p += 4;
      value = f;
    }
  return rows;
}

struct Expert {
  RawMatrix gate, up, down;
};

TEST_P(Tiny, EveryTensorIsReadOrNamed) {
  const auto source = open_weights(path_, folder_.config);
  const int64_t hidden = field("hidden_size"), vocab = field("vocab_size"), heads = field("num_attention_heads");
  const int64_t kv_heads = field("num_key_value_heads"), head = field("head_dim"), experts = this->experts();
  const int64_t inner = field("moe_intermediate_size");
  ThreadTeam team(3);  // experts are read by several threads at a time
  source->matrix(prefix_ + "embed_tokens", vocab, hidden, &team);
  source->matrix("lm_head", vocab, hidden);
  source->vector(prefix_ + "norm.weight", {hidden});
  for (int64_t l = 0; l < field("num_hidden_layers"); ++l) {
    const std::string layer = prefix_ + "layers." + std::to_string(l) + ".";
    source->vector(layer + "input_layernorm.weight", {hidden});
    source->vector(layer + "post_attention_layernorm.weight", {hidden});
    if (source->has(layer + "self_attn.q_proj")) {
      source->matrix(layer + "self_attn.q_proj", heads * head * (nested_ ? 2 : 1), hidden);
      source->matrix(layer + "self_attn.k_proj", kv_heads * head, hidden);
      source->matrix(layer + "self_attn.v_proj", kv_heads * head, hidden);
      source->matrix(layer + "self_attn.o_proj", hidden, heads * head);
      source->vector(layer + "self_attn.q_norm.weight", {head});
      source->vector(layer + "self_attn.k_norm.weight", {head});
    } else {
      const int64_t key = field("linear_num_key_heads") * field("linear_key_head_dim");
      const int64_t values = field("linear_num_value_heads"), wide = field("linear_value_head_dim");
      const int64_t channels = 2 * key + values * wide;
      source->matrix(layer + "linear_attn.in_proj_qkv", channels, hidden);
      source->matrix(layer + "linear_attn.in_proj_z", values * wide, hidden);
      source->matrix(layer + "linear_attn.in_proj_a", values, hidden);
      source->matrix(layer + "linear_attn.in_proj_b", values, hidden);
      source->matrix(layer + "linear_attn.out_proj", hidden, values * wide);
      source->vector(layer + "linear_attn.conv1d.weight", {channels, 1, field("linear_conv_kernel_dim")});
      source->vector(layer + "linear_attn.A_log", {values});
      source->vector(layer + "linear_attn.dt_bias", {values});
      source->vector(layer + "linear_attn.norm.weight", {wide});
    }
    source->matrix(layer + "mlp.gate", experts, hidden);
    if (source->has(layer + "mlp.experts.gate_up_proj")) {
      source->matrix(layer + "mlp.experts.gate_up_proj", experts * 2 * inner, hidden);
      source->matrix(layer + "mlp.experts.down_proj", experts * hidden, inner);
    } else {
      share_out(&team, experts, [&](int64_t begin, int64_t end) {
        for (int64_t e = begin; e < end; ++e) {
          const std::string expert = layer + "mlp.experts." + std::to_string(e) + ".";
          source->matrix(expert + "gate_proj", inner, hidden);
          source->matrix(expert + "up_proj", inner, hidden);
          source->matrix(expert + "down_proj", hidden, inner);
        }
      });
    }
    if (nested_) {
      const int64_t shared = field("shared_expert_intermediate_size");
      source->matrix(layer + "mlp.shared_expert.gate_proj", shared, hidden);
      source->matrix(layer + "mlp.shared_expert.up_proj", shared, hidden);
      source->matrix(layer + "mlp.shared_expert.down_proj", hidden, shared);
      source->matrix(layer + "mlp.shared_expert_gate", 1, hidden);
    }
    source->release();
  }
  if (nested_)
    expect_error(Code::kBadModel, {"used by nothing in this model", "model.visual."}, [&] { source->finish(); });
  source->ignore("model.visual.", "vision");
  source->finish();
}

TEST_P(Tiny, AnMoeBlockIsThatOfTransformers) {
  const json golden = read_json_object(path_ + "/golden.json");
  const Safetensors tensors = Safetensors::open_file(path_ + "/golden.safetensors");
  const auto about = std::find_if(golden.at("layers").begin(), golden.at("layers").end(),
                                  [](const json& l) { return l.at("kind") == "moe"; });
  ASSERT_NE(about, golden.at("layers").end());
  const std::string mlp = prefix_ + "layers." + std::to_string(about->at("layer").get<int>()) + ".mlp.";
  const std::vector<Vector> inputs = rows_of(*tensors.find(about->at("input").get<std::string>()));
  const std::vector<Vector> outputs = rows_of(*tensors.find(about->at("output").get<std::string>()));

  const auto source = open_weights(path_, folder_.config);
  const int64_t hidden = field("hidden_size"), inner = field("moe_intermediate_size"), experts = this->experts();
  std::vector<Expert> expert(static_cast<size_t>(experts));
  for (int64_t e = 0; e < experts; ++e) {
    Expert& x = expert[static_cast<size_t>(e)];
    if (source->has(mlp + "experts.gate_up_proj")) {
      const RawMatrix both = source->matrix(mlp + "experts.gate_up_proj", experts * 2 * inner, hidden);
      x.gate = both.slice_rows(2 * e * inner, (2 * e + 1) * inner);
      x.up = both.slice_rows((2 * e + 1) * inner, (2 * e + 2) * inner);
      x.down =
          source->matrix(mlp + "experts.down_proj", experts * hidden, inner).slice_rows(e * hidden, (e + 1) * hidden);
    } else {
      const std::string name = mlp + "experts." + std::to_string(e) + ".";
      x = {source->matrix(name + "gate_proj", inner, hidden), source->matrix(name + "up_proj", inner, hidden),
           source->matrix(name + "down_proj", hidden, inner)};
    }
  }
  const RawMatrix router = source->matrix(mlp + "gate", experts, hidden);

  double worst = 0, largest = 0;
  for (size_t t = 0; t < inputs.size(); ++t) {
    const Vector& x = inputs[t];
    const Vector logits = times(router, x);
    std::vector<size_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    order.resize(static_cast<size_t>(field("num_experts_per_tok")));
    double sum = 0;
    for (const size_t e : order) sum += std::exp(logits[e] - logits[order[0]]);
    Vector y(static_cast<size_t>(hidden));
    for (const size_t e : order) {
      const Vector part = times(expert[e].down, swiglu(times(expert[e].gate, x), times(expert[e].up, x)));
      for (size_t i = 0; i < y.size(); ++i) y[i] += std::exp(logits[e] - logits[order[0]]) / sum * part[i];
    }
    if (nested_) {
      const int64_t wide = field("shared_expert_intermediate_size");
      const std::string shared = mlp + "shared_expert.";
      const Vector h = swiglu(times(source->matrix(shared + "gate_proj", wide, hidden), x),
                              times(source->matrix(shared + "up_proj", wide, hidden), x));
      const Vector part = times(source->matrix(shared + "down_proj", hidden, wide), h);
      const double gate = 1 / (1 + std::exp(-times(source->matrix(mlp + "shared_expert_gate", 1, hidden), x)[0]));
      for (size_t i = 0; i < y.size(); ++i) y[i] += gate * part[i];
    }
    for (size_t i = 0; i < y.size(); ++i) {
      worst = std::max(worst, std::fabs(y[i] - outputs[t][i]));
      largest = std::max(largest, std::fabs(outputs[t][i]));
    }
  }
  EXPECT_GT(largest, 0.1);
  EXPECT_LE(worst, 2e-6 * largest) << "float32 rounding of the reference";
}

INSTANTIATE_TEST_SUITE_P(All, Tiny,
                         testing::Values("qwen3_moe-bf16", "qwen3_moe-nvfp4-modelopt", "qwen3_moe-nvfp4-packed",
                                         "qwen3_moe-mixed", "qwen3_5_moe-bf16", "qwen3_5_moe-nvfp4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace mettle
