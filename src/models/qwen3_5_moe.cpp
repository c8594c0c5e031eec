// Qwen3.5-MoE (text part): Gated DeltaNet and gated attention in turn, experts and a gated shared expert in every
// layer, RMSNorm weights 1 + w. The MTP layer and the vision tower are recognised and kept aside.
#include <fmt/format.h>

#include "base/error.h"
#include "models/qwen_config.h"
#include "models/registry.h"

namespace mettle {
namespace {

constexpr std::string_view kTypes[] = {"qwen3_5_moe", "qwen3_5_moe_text"};
constexpr std::string_view kClasses[] = {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"};

// "layer_types" where it stands, else every full_attention_interval-th layer is attention.
std::vector<Mixer> read_layers(const ConfigReader& config, int layers) {
  std::vector<Mixer> kinds;
  const std::vector<std::string> types = config.texts("layer_types");
  if (types.empty()) {
    const int64_t interval = config.integer("full_attention_interval", 1, 1024, 4);
    for (int l = 0; l < layers; ++l) kinds.push_back((l + 1) % interval == 0 ? Mixer::kAttention : Mixer::kGdn);
    return kinds;
  }
  if (std::ssize(types) != layers)
    fail(Code::kBadModel, fmt::format("{}.layer_types: must have num_hidden_layers = {} entries, has {}", config.path(),
                                      layers, types.size()));
  for (const std::string& type : types) {
    if (type != "linear_attention" && type != "full_attention")
      fail(Code::kUnsupported,
           fmt::format("{}.layer_types: must be linear_attention or full_attention, got \"{}\"", config.path(), type));
    kinds.push_back(type == "full_attention" ? Mixer::kAttention : Mixer::kGdn);
  }
  return kinds;
}

GdnShape read_gdn(const ConfigReader& config) {
  GdnShape g;
  g.key_heads = static_cast<int>(config.integer("linear_num_key_heads", 1, 1024));
  g.value_heads = static_cast<int>(config.integer("linear_num_value_heads", 1, 4096));
  g.dk = static_cast<int>(config.integer("linear_key_head_dim", 1, 1024));
  g.dv = static_cast<int>(config.integer("linear_value_head_dim", 1, 1024));
  const int64_t conv = config.integer("linear_conv_kernel_dim", 1, 64, 4);
  if (conv != 4)
    fail(Code::kUnsupported, fmt::format("{}.linear_conv_kernel_dim: must be 4, got {}", config.path(), conv));
  if (g.value_heads % g.key_heads != 0)
    fail(Code::kBadModel,
         fmt::format("{}.linear_num_value_heads: must be a multiple of linear_num_key_heads, got {} and {}",
                     config.path(), g.value_heads, g.key_heads));
  return g;
}

std::unique_ptr<Model> make(const ConfigReader& root, WeightSource& source, const ModelOptions& options) {
  const ConfigReader config = root.has("text_config") ? root.child("text_config") : root;
  DecoderSpec spec;
  spec.info.architecture = "qwen3_5_moe";
  read_common(config, spec);
  spec.info.mtp_layers = static_cast<int>(config.integer("mtp_num_hidden_layers", 0, 16, 0));
  spec.layers = read_layers(config, spec.info.layers);
  expect_text(config, "output_gate_type", "swish");
  spec.attention.gate = config.boolean("attn_output_gate", true);
  spec.gdn = read_gdn(config);
  spec.moe.shared_width = static_cast<int>(config.integer("shared_expert_intermediate_size", 0, 1 << 20, 0));
  spec.moe.renormalise = config.boolean("norm_topk_prob", true);
  spec.norm_plus_one = true;
  spec.tied_head = root.boolean("tie_word_embeddings", config.boolean("tie_word_embeddings", false));
  spec.prefixes = {"model.language_model.", "language_model.model.", "model."};
  spec.heads = {"lm_head", "language_model.lm_head", "model.language_model.lm_head"};
  for (const char* prefix : {"mtp.", "model.mtp.", "model.language_model.mtp."})
    spec.ignored.emplace_back(prefix, "multi-token prediction layer: drafts are not made yet");
  for (const char* prefix : {"model.visual.", "visual."}) spec.ignored.emplace_back(prefix, "vision tower: text only");
  return make_decoder(std::move(spec), source, options);
}

}  // namespace

extern const ModelEntry model_qwen3_5_moe;
const ModelEntry model_qwen3_5_moe = {.name = "qwen3_5_moe", .types = kTypes, .classes = kClasses, .make = make};

}  // namespace mettle
