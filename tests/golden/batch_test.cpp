// A request's logits and text do not depend on how its rows are cut into steps, nor on its neighbours.
#include "golden_support.h"

namespace mettle {
namespace {

using namespace mettle::testing;

Ids golden_prompt(int i) {
  return read_json(kGolden + "/golden.json")["prompts"][static_cast<size_t>(i)]["ids"].get<Ids>();
}

EngineOptions options_of(Activation activation, int step_tokens = 512) {
  EngineOptions options = tiny_options();
  options.activation = activation;
  options.step_tokens = step_tokens;
  return options;
}

void expect_chunks_agree(const std::string& folder, const Ids& prompt, const std::vector<int>& chunks, int context) {
  std::vector<Watched::Run> runs;
  for (const int chunk : chunks) {
    EngineOptions options = options_of(Activation::kF32, chunk);
    options.model_path = folder;
    options.context_length = context;
    Watched engine(options);
    runs.push_back(engine.run(prompt, greedy_through(6)));
    EXPECT_EQ(engine.engine().stats().steps,
              (prompt.size() + static_cast<size_t>(chunk) - 1) / static_cast<size_t>(chunk) + 5);
  }
  for (size_t c = 1; c < runs.size(); ++c) {
    EXPECT_EQ(runs[c].tokens, runs[0].tokens) << "chunks of " << chunks[c];
    for (size_t i = 0; i < runs[c].logits.size(); ++i) {
      EXPECT_LE(relative_error(runs[c].logits[i], runs[0].logits[i]), 2e-5)
          << "chunks of " << chunks[c] << ", token " << i;
    }
  }
}

TEST(Batch, ChunkSizesGiveTheSameLogits) {
  expect_chunks_agree(tiny_options().model_path, golden_prompt(6), {512, 64, 7, 1}, 4096);
}

TEST(Batch, ChunkSizesGiveTheSameLogitsInQwen3Moe) {
  expect_chunks_agree(kTiny + "/qwen3_moe-nvfp4-modelopt",
                      read_json(kTiny + "/qwen3_moe-nvfp4-modelopt/golden.json")["prompts"][2]["ids"].get<Ids>(),
                      {512, 7, 1}, 512);
}

TEST(BatchFull, ChunkSizesGiveTheSameLogitsOfALongPrompt) {
  expect_chunks_agree(tiny_options().model_path, golden_prompt(7), {512, 64, 7, 1}, 4096);
}

TEST(Batch, ThirtyTwoMixedRequestsGiveEachItsText) {
  const Mixed m = mixed_requests(32);
  Watched engine(options_of(Activation::kF32));
  const auto together = engine.run(m.prompts, m.params);
  EXPECT_LT(engine.engine().stats().steps, 60u);  // they did run together
  int near_ties = 0;
  for (size_t i = 0; i < m.prompts.size(); ++i) {
    const auto alone = engine.run(m.prompts[i], m.params[i]);
    size_t at = 0;
    while (at < alone.tokens.size() && alone.tokens[at] == together[i].tokens[at]) ++at;
    for (size_t t = 0; t < std::min(at + 1, alone.tokens.size()); ++t) {
      EXPECT_LE(relative_error(together[i].logits[t], alone.logits[t]), 2e-5) << "request " << i << ", token " << t;
    }
    if (at == alone.tokens.size()) continue;
    ++near_ties;
    const Logits& logits = alone.logits[at];
    const double margin =
        std::abs(logits[static_cast<size_t>(alone.tokens[at])] - logits[static_cast<size_t>(together[i].tokens[at])]);
    std::printf("request %zu, token %zu: %d together, %d alone, margin %g\n", i, at, together[i].tokens[at],
                alone.tokens[at], margin);
    if (m.params[i].temperature == 0) {
      EXPECT_LE(margin, 1e-3) << "request " << i;
    }
  }
  EXPECT_LE(near_ties, 1);
  const EngineStats stats = engine.engine().stats();
  EXPECT_EQ(stats.blocks_used, 0);
  EXPECT_EQ(stats.slots_used, 0);
}

TEST(Batch, SixtyFourRequestsFinishInSixContexts) {
  EngineOptions options = options_of(Activation::kBf16);
  options.context_length = 144;
  options.cache_tokens = 6 * 144;
  Watched engine(options, std::make_shared<UnprovedChoices>("cpu_gemv"));
  Mixed m = mixed_requests(64);
  for (auto& p : m.params) p.max_tokens = 100;
  for (auto& ids : m.prompts) ids.resize(std::min<size_t>(ids.size(), 40));
  engine.keep(false);
  const auto runs = engine.run(m.prompts, m.params);
  for (const auto& run : runs) {
    EXPECT_EQ(run.finish, Finish::kLength);
    EXPECT_EQ(run.tokens.size(), 100u);
  }
  const EngineStats stats = engine.engine().stats();
  EXPECT_GT(stats.preemptions, 0u);
  EXPECT_EQ(stats.blocks_used, 0);
  EXPECT_EQ(stats.requests_finished, 64u);
}

TEST(Batch, DeterministicIsBitwiseTheSameInEveryBatch) {
  EngineOptions options = options_of(Activation::kBf16);
  options.deterministic = true;
  options.context_length = 320;
  const Mixed m = mixed_requests(12);
  Watched roomy(options);
  options.cache_tokens = 4 * 320;  // preempts
  options.step_tokens = 130;
  Watched tight(options);
  const auto a = roomy.run(m.prompts, m.params), b = tight.run(m.prompts, m.params);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tokens, b[i].tokens) << i;
    EXPECT_EQ(a[i].logits, b[i].logits) << i;
  }
}

}  // namespace
}  // namespace mettle
