#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/test_support.h"

namespace mettle {
namespace {

using namespace mettle::testing;

nlohmann::json golden() {
  std::ifstream file(METTLE_SOURCE_DIR "/models/golden/golden.json");
  return nlohmann::json::parse(file);
}

TEST(Engine, GreedyContinuationsAreThoseOfTheGoldens) {
  EngineOptions options = tiny_options();
  options.activation = Activation::kF32;
  const auto engine = start_probed(options, {.choices = unproved_reference_choices()});
  const nlohmann::json prompts = golden()["prompts"];
  for (const int i : {0, 1, 9, 14}) {
    SamplingParams params = greedy(48);
    params.ignore_eos = true;
    Reply reply;
    engine->submit(prompts[i]["ids"].get<std::vector<int32_t>>(), params, reply.listener());
    EXPECT_EQ(reply.wait().finish, Finish::kLength);
    EXPECT_EQ(reply.tokens(), prompts[i]["continuation"].get<std::vector<int32_t>>()) << prompts[i]["name"];
  }
}

}  // namespace
}  // namespace mettle
