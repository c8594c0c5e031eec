// The embedded model with float32 activations: logits and continuations of an independent implementation.
#include "golden_support.h"

namespace mettle {
namespace {

using namespace mettle::testing;

EngineOptions f32_options() {
  EngineOptions options = tiny_options();
  options.activation = Activation::kF32;
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

TEST(Golden, LogitsAndContinuationsOfShortPrompts) { expect_goldens("reference", 300); }
TEST(GoldenFull, LogitsAndContinuationsOfAllPrompts) { expect_goldens("reference", 1 << 20); }
TEST(GoldenFull, LogitsAndContinuationsFewRowsBackend) { expect_goldens("cpu_gemv", 1 << 20); }
TEST(GoldenFull, LogitsAndContinuationsManyRowsBackend) { expect_goldens("cpu_gemm", 1 << 20); }

}  // namespace
}  // namespace mettle
