// Tensor parallelism: the same logits whatever the number of ranks, and refusals with numbers.
#include "base/temporary_folder.h"
#include "golden_support.h"

namespace mettle {
namespace {

using namespace mettle::testing;

// A folder that holds only a config: for dummy weights.
class Config {
 public:
  explicit Config(const nlohmann::json& config) { folder_.write("config.json", config.dump()); }
  EngineOptions options() const {
    EngineOptions options;
    options.model_path = folder_.path();
    options.dummy_weights = true;
    options.activation = Activation::kF32;
    return options;
  }

 private:
  TemporaryFolder folder_;
};

nlohmann::json qwen3_config() {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"model_type", "qwen3_moe"},
          {"vocab_size", 500},
          {"hidden_size", 64},
          {"num_hidden_layers", 3},
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

Ids some_prompt(int size, int vocab) {
  Ids ids;
  for (int i = 0; i < size; ++i) ids.push_back((i * 7919 + 13) % vocab);
  return ids;
}

Watched::Run run_with(EngineOptions options, int tp_size, int vocab) {
  options.tp_size = tp_size;
  options.threads = 2;
  Watched engine(options);
  EXPECT_EQ(engine.engine().info().tp_size, tp_size);
  return engine.run(some_prompt(37, vocab), greedy_through(8));
}

void expect_ranks_agree(const EngineOptions& options, int vocab, std::vector<int> sizes) {
  const auto alone = run_with(options, 1, vocab);
  ASSERT_EQ(alone.logits.size(), 8u);
  for (const int size : sizes) {
    const auto cut = run_with(options, size, vocab);
    EXPECT_EQ(cut.tokens, alone.tokens) << size << " ranks";
    ASSERT_EQ(cut.logits.size(), alone.logits.size());
    for (size_t i = 0; i < cut.logits.size(); ++i) {
      EXPECT_LE(relative_error(cut.logits[i], alone.logits[i]), 2e-5) << size << " ranks, token " << i;
    }
  }
}

TEST(Ranks, EmbeddedModel) {  // 2 kv heads, 2 key heads: four ranks replicate both
  EngineOptions options = tiny_options();
  options.activation = Activation::kF32;
  expect_ranks_agree(options, 6144, {2, 4});
}

TEST(Ranks, Qwen3MoeWithUnevenWidthAndVocabulary) {  // width 80 = 5 blocks, vocabulary 500 = 32 blocks, the last short
  const Config config(qwen3_config());
  expect_ranks_agree(config.options(), 500, {2, 4});
}

TEST(Ranks, MoreRanksThanKeyHeadsAndOneSharedBlock) {
  nlohmann::json config = qwen3_config();
  config["architectures"] = {"Qwen3_5MoeForCausalLM"};
  config["model_type"] = "qwen3_5_moe_text";
  config.update({{"num_key_value_heads", 1},
                 {"linear_num_key_heads", 1},
                 {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 16},
                 {"linear_value_head_dim", 32},
                 {"full_attention_interval", 2},
                 {"shared_expert_intermediate_size", 16},
                 {"partial_rotary_factor", 0.5}});
  const Config folder(config);
  expect_ranks_agree(folder.options(), 500, {2, 3, 4});
}

TEST(Ranks, BothActivationsAndNvfp4) {
  EngineOptions options = tiny_options();
  const auto alone = run_with(options, 1, 6144), two = run_with(options, 2, 6144);
  // BF16 rounds x once per layer, so partial sums in another order may fall on the other side.
  EXPECT_LE(relative_l2(two.logits[0], alone.logits[0]), 0.02);
}

void expect_refusal(const EngineOptions& base, int tp_size, const std::string& words) {
  EngineOptions options = base;
  options.tp_size = tp_size;
  try {
    start_probed(options, {.choices = unproved_reference_choices()});
    FAIL() << "accepted " << tp_size << " ranks";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kUnsupported);
    EXPECT_NE(e.message.find(words), std::string::npos) << e.message;
  }
}

TEST(Ranks, RefusesWhatCannotBeCut) {
  const Config config(qwen3_config());
  expect_refusal(config.options(), 6, "80 in blocks of 16 are 5 blocks, fewer than 6 ranks");
  expect_refusal(config.options(), 3, "3 ranks must share 2 groups of 4 heads evenly");
}

}  // namespace
}  // namespace mettle
