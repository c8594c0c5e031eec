#include "models/planned.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/model_folder.h"
#include "models/cut.h"

namespace mettle {
namespace {

constexpr std::string_view kGlm = "glm_moe_dsa", kGlmClass = "GlmMoeDsaForCausalLM";
constexpr int64_t kMost = 1 << 24;

// What every decoder has around its layers.
void add_common(const ConfigReader& c, const ModelOptions& options, PlannedModel& model) {
  const int hidden = static_cast<int>(c.integer("hidden_size", 16, kMost));
  const int vocab = static_cast<int>(c.integer("vocab_size", 1, kMost));
  const float eps = static_cast<float>(c.number("rms_norm_eps", 0, 1));
  model.problems.emplace_back(EmbedProblem{.vocab = vocab, .hidden = hidden});
  for (const int ranks : {0, options.ranks})
    model.problems.emplace_back(
        JoinProblem{.hidden = hidden, .ranks = ranks, .eps = eps, .activation = options.activation});
  for (int rank = 0; rank < options.ranks; ++rank) {
    const Range rows = cut_blocks("vocabulary", vocab, 16, rank, options.ranks, Share::kAtLeastOneBlock);
    model.problems.emplace_back(
        LinearProblem{.in = hidden, .out = static_cast<int>(rows.size()), .activation = options.activation});
  }
  model.problems.emplace_back(SampleProblem{.vocab = vocab, .usable = vocab});
}

// GLM-5: latent attention over the keys that an indexer picks, experts behind a sigmoid router, three dense layers.
PlannedModel glm(const ConfigReader& c, const ModelOptions& options) {
  const auto integer = [&](const char* key) { return c.integer(key, 1, kMost); };
  PlannedModel model{.name = kGlm};
  add_common(c, options, model);
  const int64_t hidden = integer("hidden_size"), heads = integer("num_attention_heads");
  const int64_t nope = integer("qk_nope_head_dim"), rope = integer("qk_rope_head_dim"), v = integer("v_head_dim");
  const int64_t q_rank = integer("q_lora_rank"), kv_rank = integer("kv_lora_rank");
  const int64_t index_heads = integer("index_n_heads"), index_dim = integer("index_head_dim");
  const int64_t top_keys = integer("index_topk");
  const auto activation = name_of(options.activation);
  model.missing.push_back(
      {"indexer",
       fmt::format("indexer h{} q{} d{} top{} rank{} {}", hidden, index_heads, index_dim, top_keys, q_rank, activation),
       fmt::format(
           "scores of {} index heads, sums of relu(q . k) under learnt weights, and the best {} keys of each row",
           index_heads, top_keys),
       fmt::format(
           "a plain backend for each device, then tiles of keys on a GPU; up to {} tokens it selects all of them",
           top_keys)});
  model.missing.push_back(
      {"attention",
       fmt::format("attention mla h{} q{} nope{} rope{} v{} rank{}/{} top{} {}", hidden, heads, nope, rope, v, q_rank,
                   kv_rank, top_keys, activation),
       fmt::format(
           "latent attention: {} values a token in the cache for all {} heads, pairs of neighbours rotated, over "
           "selected keys",
           kv_rank + rope, heads),
       "a plain backend in the expanded form, then decode in the absorbed form over the latent cache"});
  if (const int64_t dense = c.integer("first_k_dense_replace", 0, kMost, 0); dense > 0)
    model.missing.push_back({"mlp", fmt::format("mlp h{} w{} {}", hidden, integer("intermediate_size"), activation),
                             fmt::format("a dense SwiGLU block of {} layers", dense),
                             "one expert that every row takes: the shared part of moe alone"});
  const std::string scoring = c.text("scoring_func", "softmax");
  model.missing.push_back(
      {"moe",
       fmt::format("moe {} h{} e{} k{} w{} shared{} x{:g} {}", scoring, hidden, integer("n_routed_experts"),
                   integer("num_experts_per_tok"), integer("moe_intermediate_size"),
                   c.integer("n_shared_experts", 0, kMost, 0) * integer("moe_intermediate_size"),
                   c.number("routed_scaling_factor", 0, 1e6, 1), activation),
       fmt::format("{} scores, chosen with a bias in float32 that is not part of the weights, weights times {:g}",
                   scoring, c.number("routed_scaling_factor", 0, 1e6, 1)),
       "a routing of moe beside softmax; the products of the experts are those that serve Qwen"});
  return model;
}

}  // namespace

bool is_planned_model(const nlohmann::json& config) {
  const ConfigReader reader(config, "config");
  const std::vector<std::string> classes = reader.texts("architectures");
  return std::find(classes.begin(), classes.end(), kGlmClass) != classes.end() ||
         (classes.empty() && reader.text("model_type", "") == kGlm);
}

std::optional<PlannedModel> planned_model(const nlohmann::json& config, const ModelOptions& options) {
  if (!is_planned_model(config)) return std::nullopt;
  return glm(ConfigReader(config, "config"), options);
}

}  // namespace mettle
