// The embedded model with float32 activations: logits and continuations of an independent implementation.
#include "golden_support.h"

namespace mettle {
namespace {

using namespace mettle::testing;

EngineOptions f32_options() {
  EngineOptions options = tiny_options();
  options.activation = Activation::kF32;
  options.threads = 2;
  return options;
}

void expect_goldens(const std::string& backend, size_t longest) {
  const nlohmann::json prompts = read_json(kGolden + "/golden.json")["prompts"];
  const Safetensors tensors = Safetensors::open_file(kGolden + "/golden.safetensors");
  ASSERT_EQ(prompts.size(), 24u);
  Watched engine(f32_options(), std::make_shared<UnprovedChoices>(backend));
  for (const auto& p : prompts) {
    const Ids ids = p["ids"].get<Ids>();
    if (ids.size() > longest) continue;
    const auto run = engine.run(ids, greedy_through(48));
    const double error =
        relative_error(run.logits.at(0), floats_of(tensors, "logits." + std::to_string(p["id"].get<int>())));
    EXPECT_LE(error, 1e-4) << p["name"];
    EXPECT_EQ(run.tokens, p["continuation"].get<Ids>()) << p["name"];
  }
}

// BF16 activations may be at most half again as far from float32 as transformers' own BF16 run is.
void expect_bf16_like_transformers(const std::string& backend) {
  const nlohmann::json prompts = read_json(kGolden + "/golden.json")["prompts"];
  const nlohmann::json yardstick = read_json(METTLE_SOURCE_DIR "/tests/golden/bf16_run.json");
  const Safetensors tensors = Safetensors::open_file(kGolden + "/golden.safetensors");
  Watched engine(tiny_options(), std::make_shared<UnprovedChoices>(backend));
  std::vector<double> errors;
  for (const auto& p : prompts) {
    const auto run = engine.run(p["ids"].get<Ids>(), greedy_through(1));
    errors.push_back(relative_l2(run.logits.at(0), floats_of(tensors, "logits." + std::to_string(p["id"].get<int>()))));
  }
  ASSERT_EQ(errors.size(), yardstick["prompts"].size());
  std::sort(errors.begin(), errors.end());
  const double median = (errors[11] + errors[12]) / 2, theirs = yardstick["median_relative_l2"].get<double>();
  std::printf("median relative L2: %.5f, transformers %.5f\n", median, theirs);
  EXPECT_GT(median, 0);
  EXPECT_LE(median, 1.5 * theirs);
}

TEST(Golden, Bf16IsAsCloseAsTransformers) { expect_bf16_like_transformers("cpu_gemv"); }
TEST(GoldenFull, Bf16IsAsCloseAsTransformersOnTheReference) { expect_bf16_like_transformers("reference"); }
TEST(GoldenFull, Bf16IsAsCloseAsTransformersOnTheManyRowsBackend) { expect_bf16_like_transformers("cpu_gemm"); }

TEST(Golden, LogitsAndContinuationsOfShortPrompts) { expect_goldens("cpu_gemv", 300); }
TEST(GoldenFull, LogitsAndContinuationsOfAllPrompts) { expect_goldens("reference", 1 << 20); }
TEST(GoldenFull, LogitsAndContinuationsFewRowsBackend) { expect_goldens("cpu_gemv", 1 << 20); }
TEST(GoldenFull, LogitsAndContinuationsManyRowsBackend) { expect_goldens("cpu_gemm", 1 << 20); }

}  // namespace
}  // namespace mettle
