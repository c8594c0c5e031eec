// What offline_bench counts experts with: the choices of every layer, told while steps run.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>

#include "engine/test_support.h"

namespace mettle {
namespace {

using namespace mettle::testing;

TEST(Routes, EveryLayerIsToldAndTheTokensStayTheSame) {
  const auto telling = std::make_shared<std::atomic<bool>>(false);
  std::map<int, std::vector<std::vector<int32_t>>> told;  // by layer, of each step
  int most = 0;
  Probe probe;
  probe.choices = std::make_shared<UnprovedChoices>("cpu_gemv");
  probe.route_steps = telling;
  probe.on_routes = [&](int layer, int top_k, std::span<const int32_t> experts) {
    most = top_k;
    told[layer].emplace_back(experts.begin(), experts.end());
  };
  const auto engine = start_probed(tiny_options(), std::move(probe));
  const std::vector<int32_t> prompt = {11, 12, 13, 14, 15, 16, 17};
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = 4;
  const auto run = [&] {
    Reply reply;
    engine->submit(prompt, params, reply.listener());
    EXPECT_EQ(reply.wait().finish, Finish::kLength);
    return reply.tokens();
  };
  const auto untold = run();
  EXPECT_TRUE(told.empty());
  *telling = true;
  EXPECT_EQ(run(), untold);
  *telling = false;

  ASSERT_EQ(std::ssize(told), engine->info().layers);
  ASSERT_EQ(most, 4);  // num_experts_per_tok of the embedded model, which has 16 experts
  for (const auto& [layer, steps] : told) {
    ASSERT_EQ(steps.size(), 4u) << layer;  // the prompt, and a step for each token but the last
    for (size_t s = 0; s < steps.size(); ++s) {
      EXPECT_EQ(steps[s].size(), s == 0 ? prompt.size() * 4 : 4u);
      for (size_t i = 0; i < steps[s].size(); i += 4) {
        const std::set<int32_t> different(steps[s].begin() + static_cast<ptrdiff_t>(i),
                                          steps[s].begin() + static_cast<ptrdiff_t>(i) + 4);
        EXPECT_EQ(different.size(), 4u);
        EXPECT_GE(*different.begin(), 0);
        EXPECT_LT(*different.rbegin(), 16);
      }
    }
  }
  EXPECT_NE(told.at(0), told.at(1));  // each layer's own, not what the last one left
}

}  // namespace
}  // namespace mettle
