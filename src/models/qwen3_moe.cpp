// Qwen3-MoE: attention with q and k norm in every layer, experts without a shared one, plain RMSNorm weights.
#include <fmt/format.h>

#include "models/qwen_config.h"
#include "models/registry.h"

namespace mettle {
namespace {

constexpr std::string_view kTypes[] = {"qwen3_moe"};
constexpr std::string_view kClasses[] = {"Qwen3MoeForCausalLM"};

std::unique_ptr<Model> make(const ConfigReader& config, WeightSource& source, const ModelOptions& options) {
  DecoderSpec spec;
  spec.info.architecture = "qwen3_moe";
  read_common(config, spec);
  expect_boolean(config, "use_sliding_window", false);
  spec.layers.assign(static_cast<size_t>(spec.info.layers), Mixer::kAttention);
  spec.moe.renormalise = config.boolean("norm_topk_prob", false);
  spec.tied_head = config.boolean("tie_word_embeddings", false);
  spec.prefixes = {"model."};
  spec.heads = {"lm_head"};
  return make_decoder(std::move(spec), source, options);
}

}  // namespace

extern const ModelEntry model_qwen3_moe;
const ModelEntry model_qwen3_moe = {.name = "qwen3_moe", .types = kTypes, .classes = kClasses, .make = make};

}  // namespace mettle
