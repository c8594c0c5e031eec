// What does not fit, or what a device does not do, is refused with values, before anything is proved or loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/temporary_folder.h"
#include "engine/plan.h"
#include "engine/test_support.h"
#include "tensor/buffer.h"

namespace mettle {
namespace {

using namespace mettle::testing;
using ::testing::HasSubstr;

TEST(Memory, PlanThatDoesNotFitIsRefusedWithItsParts) {
  MemoryPlan plan;
  plan.weights.by_format[static_cast<size_t>(WeightFormat::kBf16)] = 3 << 20;
  plan.scratch_bytes = 1 << 20;
  plan.caches.kv_bytes = 2 << 20;
  plan.caches.state_bytes = 1 << 20;
  plan.caches.blocks = 128;
  plan.caches.slots = 4;
  plan.available = plan.total();
  EXPECT_EQ(plan.total(), 7 << 20);
  check_memory(plan);
  --plan.available;
  try {
    check_memory(plan);
    FAIL() << "accepted one byte too many";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kDevice);
    EXPECT_THAT(e.message, HasSubstr("needs 7340032 bytes, 7340031 are available"));
    for (const char* part : {"weights 3.0 MiB", "scratch 1.0 MiB", "kv      2.0 MiB (128 blocks", "state   1.0 MiB (4"})
      EXPECT_THAT(e.message, HasSubstr(part));
  }
}

TEST(Memory, WhatWasTakenIsTheEnginesOwnWhateverOthersDo) {
  constexpr int64_t kMiB = 1 << 20;
  // Another program took 3,956 MiB meanwhile.
  EXPECT_EQ(
      taken_text(412 * kMiB, 400 * kMiB, 9000 * kMiB, 4632 * kMiB),
      "412.0 MiB taken, 400.0 MiB planned (+3.00 %); the GPU has 4368.0 MiB less free than before, the driver's own "
      "and other programs' memory included");
  // The driver had kept an earlier engine's memory, or somebody left.
  EXPECT_THAT(taken_text(412 * kMiB, 400 * kMiB, 9000 * kMiB, 9000 * kMiB),
              HasSubstr("412.0 MiB taken, 400.0 MiB planned (+3.00 %); the GPU has 0.0 MiB less free"));
  EXPECT_THAT(taken_text(396 * kMiB, 400 * kMiB, 9000 * kMiB, 9010 * kMiB),
              HasSubstr("396.0 MiB taken, 400.0 MiB planned (-1.00 %); the GPU has 10.0 MiB more free"));
}

TEST(StepRows, LongOnAGpuWithRoomAndAsAskedForOtherwise) {
  const auto rows = [](int asked, DeviceKind device, int64_t room, bool deterministic = false, int max_running = 64) {
    EngineOptions options;
    options.step_tokens = asked, options.deterministic = deterministic, options.max_running = max_running;
    return step_rows(options, device, room, [](int n) { return int64_t{n} * 1000; });
  };
  EXPECT_EQ(rows(0, DeviceKind::kCuda, 16 * 2048 * 1000), 2048);
  EXPECT_EQ(rows(0, DeviceKind::kCuda, 16 * 2048 * 1000 - 1), 512);
  EXPECT_EQ(rows(0, DeviceKind::kCuda, -1), 512);
  EXPECT_EQ(rows(0, DeviceKind::kCpu, int64_t{1} << 40), 512);
  EXPECT_EQ(rows(7, DeviceKind::kCuda, int64_t{1} << 40), 7);
  EXPECT_EQ(rows(7, DeviceKind::kCpu, 0), 7);
  // A whole chunk of 64 rows beside those that decode.
  EXPECT_EQ(rows(0, DeviceKind::kCuda, int64_t{1} << 40, true), 512);
  EXPECT_EQ(rows(0, DeviceKind::kCpu, 0, true, 449), 513);
}

TEST(StepRows, CachesThatWereAskedForStandBeforeLongSteps) {
  MemoryPlan plan;
  plan.weights.by_format[0] = 20'000;
  plan.available = 100'000;
  EXPECT_EQ(room_of_steps({}, plan), 70'000) << "a tenth stays free where caches take what is left";
  plan.caches.kv_bytes = 60'000;
  plan.caches.state_bytes = 15'000;
  EngineOptions tokens, bytes;
  tokens.cache_tokens = 16, bytes.cache_bytes = 75'000;
  for (const EngineOptions& asked : {tokens, bytes}) {
    EXPECT_TRUE(asks_for_caches(asked));
    EXPECT_EQ(room_of_steps(asked, plan), 5'000);
    // Steps of 2,048 rows would have found no room beside these caches, and the start would have been refused.
    const auto scratch = [](int rows) { return rows == 2048 ? int64_t{5'001} : int64_t{1'300}; };
    EXPECT_EQ(step_rows(asked, DeviceKind::kCuda, room_of_steps(asked, plan), scratch), 512);
  }
  EXPECT_FALSE(asks_for_caches({}));
}

TEST(DeviceOptions, WhatAGpuDoesNotDoIsRefusedByName) {
  const auto refusal = [](auto change, DeviceKind device) {
    EngineOptions options;
    change(options);
    try {
      check_device_options(options, device);
      return std::string();
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kUnsupported);
      return e.message;
    }
  };
  const auto ranks = [](EngineOptions& o) { o.tp_size = 4; };
  const auto deterministic = [](EngineOptions& o) { o.deterministic = true; };
  EXPECT_EQ(refusal(ranks, DeviceKind::kCuda), "tp_size: must be 1 on a GPU, got 4");
  EXPECT_EQ(refusal(deterministic, DeviceKind::kCuda), "");
  EXPECT_EQ(refusal([](EngineOptions&) {}, DeviceKind::kCuda), "");
  EXPECT_EQ(refusal(ranks, DeviceKind::kCpu), "");
  EXPECT_EQ(refusal(deterministic, DeviceKind::kCpu), "");
}

TEST(Memory, WhatIsAvailableIsSomeOfThisMachine) {
  EXPECT_GT(available_memory(), 0);
  EXPECT_LE(available_memory(), sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE));
}

// Counts what is asked for proofs.
class Asked : public UnprovedChoices {
 public:
  Choices<MoeOp> choose(const MoeProblem& p) override {
    ++count;
    return UnprovedChoices::choose(p);
  }
  int count = 0;
};

class Starts : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.model_path = folder_.path();
    options_.dummy_weights = true;
    options_.on_progress = [this](const std::string& phase, uint64_t, uint64_t) { phases_ += phase + " "; };
  }

  std::string refusal() {
    folder_.write("config.json", config_.dump());
    const size_t before = buffer_bytes_in_use();
    try {
      start_probed(options_, {.choices = asked_});
      ADD_FAILURE() << "started";
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kDevice);
      EXPECT_EQ(buffer_bytes_in_use(), before);
      EXPECT_EQ(phases_, "");
      return e.message;
    }
  }

  nlohmann::json config_ = {{"architectures", {"Qwen3MoeForCausalLM"}},
                            {"model_type", "qwen3_moe"},
                            {"vocab_size", 512},
                            {"hidden_size", 64},
                            {"num_hidden_layers", 4},
                            {"max_position_embeddings", 1 << 24},
                            {"num_attention_heads", 4},
                            {"num_key_value_heads", 2},
                            {"head_dim", 16},
                            {"num_experts", 8},
                            {"num_experts_per_tok", 2},
                            {"moe_intermediate_size", 64},
                            {"norm_topk_prob", true},
                            {"rope_theta", 10000.0}};
  EngineOptions options_;
  std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
  std::string phases_;
  TemporaryFolder folder_;
};

TEST_F(Starts, WeightsBeyondMemoryAreRefusedBeforeProofs) {
  config_["hidden_size"] = 1 << 16;
  config_["moe_intermediate_size"] = 1 << 20;
  config_["num_experts"] = 512;
  const std::string message = refusal();
  // 4 layers of 512 experts of three matrices of 2^16 x 2^20 numbers of two bytes.
  EXPECT_THAT(message, HasSubstr("memory: the plan needs 844"));
  EXPECT_THAT(message, HasSubstr("are available"));
  EXPECT_THAT(message, HasSubstr("weights 805"));
  EXPECT_EQ(asked_->count, 0);
}

TEST_F(Starts, CachesBeyondMemoryAreRefusedBeforeLoading) {
  options_.max_running = 4096;
  options_.cache_bytes = int64_t{1} << 50;
  const std::string message = refusal();
  // At most 2^31 - 1 blocks of 16 tokens of 4 layers x (k, v) x 2 heads x 16 x 2 bytes.
  EXPECT_THAT(message, HasSubstr("memory: the plan needs 17592"));
  EXPECT_THAT(message, HasSubstr("(2147483647 blocks of 16 tokens)"));
}

}  // namespace
}  // namespace mettle
