// Small random checkpoints of both families and of every weight format, against transformers.
#include "golden_support.h"

namespace mettle {
namespace {

using namespace mettle::testing;

class Tiny : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Tiny, LogitsAndGreedyTokens) {
  const std::string folder = kTiny + "/" + std::get<0>(GetParam());
  const nlohmann::json golden = read_json(folder + "/golden.json");
  const Safetensors tensors = Safetensors::open_file(folder + "/golden.safetensors");
  EngineOptions options;
  options.device = "cpu";
  options.model_path = folder;
  options.activation = Activation::kF32;
  options.context_length = 256;
  options.threads = 1;
  Watched engine(options, std::make_shared<UnprovedChoices>(std::get<1>(GetParam())));
  ASSERT_EQ(golden["prompts"].size(), 3u);
  for (const auto& p : golden["prompts"]) {
    const Ids greedy = p["greedy"].get<Ids>();
    const auto run = engine.run(p["ids"].get<Ids>(), greedy_through(static_cast<int>(greedy.size())));
    EXPECT_LE(relative_error(run.logits.at(0), floats_of(tensors, p["logits"])), 1e-4) << p["logits"];
    EXPECT_EQ(run.tokens, greedy) << p["logits"];
  }
}

INSTANTIATE_TEST_SUITE_P(All, Tiny,
                         ::testing::Combine(::testing::Values("qwen3_moe-bf16", "qwen3_moe-nvfp4-modelopt",
                                                              "qwen3_moe-nvfp4-packed", "qwen3_moe-mixed",
                                                              "qwen3_5_moe-bf16", "qwen3_5_moe-nvfp4"),
                                            ::testing::Values("reference", "cpu_gemv", "cpu_gemm")),
                         [](const auto& info) {
                           std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace mettle
