#include "cli/inspection.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "checkpoint/toy_checkpoint.h"
#include "cli/weight_list.h"

namespace mettle {
namespace {

const std::string kConfigs = METTLE_SOURCE_DIR "/tests/data/configs/";

Inspection inspected(const std::string& config, const std::string& device, int tp_size, int context = 0,
                     int sequences = 64) {
  return inspect({.model = kConfigs + config + "/config.json",
                  .device = device,
                  .tp_size = tp_size,
                  .context_length = context,
                  .concurrency = sequences});
}

std::map<std::string, Content> by_kind(const Inspection& i) {
  std::map<std::string, Content> kinds;
  for (const Content& c : i.contents) {
    EXPECT_FALSE(kinds.contains(c.kind)) << c.kind;
    kinds[c.kind] = c;
  }
  return kinds;
}

// Qwen3.5-397B-A17B with NVFP4 experts, worked out by hand from its config: 60 layers (45 gated delta-rule, 15
// attention), hidden 4096, 512 experts of width 1024, 10 of them for a token.
TEST(Inspection, BytesOf397BAreThoseWorkedOutByHand) {
  const Inspection i = inspected("qwen3_5_397b_a17b", "sm120", 8, 1024);
  EXPECT_EQ(i.formats, "config.json");
  EXPECT_EQ(i.experts, 512);
  EXPECT_EQ(i.top_k, 10);
  const auto kinds = by_kind(i);
  const struct {
    const char* kind;
    const char* format;
    int64_t weights, bytes;
    double read_one;
  } expected[] = {
      // 60 * 512 * 3 * 1024 * 4096, half a byte each and a scale for every 16; 10 of 512 are read
      {"routed experts", "nvfp4", 386'547'056'640, 217'432'719'360, 4'246'732'800},
      {"shared experts", "bf16", 754'974'720, 1'509'949'440, 1'509'949'440},
      // 15 * (2 * 32 * 256 + 2 * 2 * 256 + 32 * 256) * 4096
      {"attention", "bf16", 1'572'864'000, 3'145'728'000, 3'145'728'000},
      // 45 * (12288 + 8192 + 8192) * 4096
      {"gdn projections", "bf16", 5'284'823'040, 10'569'646'080, 10'569'646'080},
      // 45 * (2 * 64 * 4096 + 12288 * 4 + 2 * 64)
      {"gdn small", "bf16", 25'810'560, 51'621'120, 51'621'120},
      // 60 * (512 + 1) * 4096
      {"routers and gates", "bf16", 126'074'880, 252'149'760, 252'149'760},
      // (2 * 60 + 1) * 4096 + 15 * 2 * 256 + 45 * 128
      {"norms", "bf16", 509'056, 1'018'112, 1'018'112},
      {"embedding", "bf16", 1'017'118'720, 2'034'237'440, 8'192},  // a row
      {"output head", "bf16", 1'017'118'720, 2'034'237'440, 2'034'237'440},
  };
  EXPECT_EQ(kinds.size(), std::size(expected));
  double sum = 0;
  for (const auto& e : expected) {
    ASSERT_TRUE(kinds.contains(e.kind)) << e.kind;
    const Content& c = kinds.at(e.kind);
    EXPECT_EQ(c.format, e.format) << e.kind;
    EXPECT_EQ(c.weights, e.weights) << e.kind;
    EXPECT_EQ(c.bytes, e.bytes) << e.kind;
    EXPECT_NEAR(c.read_one, e.read_one, 1) << e.kind;
    sum += e.read_one;
  }
  // 64 sequences touch 512 (1 - (502 / 512)^64) = 367.1 experts of a layer.
  EXPECT_NEAR(kinds.at("routed experts").read_many / 217'432'719'360.0, 0.71702, 1e-5);

  ASSERT_EQ(i.bounds.size(), 2u);  // one context: 1024 is the one asked for
  const Bound& one = i.bounds.front();
  EXPECT_EQ(one.sequences, 1);
  EXPECT_NEAR(one.weights, sum, 4);
  // 45 * (64 * 128 * 128 + 12288 * 3) float32, read and written
  EXPECT_EQ(one.state, 2.0 * 195'379'200);
  EXPECT_EQ(one.kv, 1024.0 * 30'720);
  // 8 * 1.792 TB/s over 22.233 GB
  EXPECT_NEAR(one.tokens_per_second, 644.8, 0.1);
  EXPECT_EQ(i.bounds.back().sequences, 64);
  EXPECT_EQ(i.bounds.back().state, 64 * one.state);
  EXPECT_NEAR(i.bounds.back().tokens_per_second, 64 * 8 * 1.792e12 / i.bounds.back().bytes(), 1e-6);
}

TEST(Inspection, BoundOnTwoH200) {
  // 2 * 4.8 TB/s over the same 22.233 GB
  EXPECT_NEAR(inspected("qwen3_5_397b_a17b", "sm90", 2, 1024, 1).bounds.at(0).tokens_per_second, 431.8, 0.1);
}

TEST(Inspection, ContextsAreShownShortAndWhole) {
  const Inspection i = inspected("qwen3_5_397b_a17b", "sm90", 2);
  ASSERT_EQ(i.bounds.size(), 4u);
  EXPECT_EQ(i.bounds[0].context, 1024);
  EXPECT_EQ(i.bounds[2].context, 262'144);
  EXPECT_EQ(i.bounds[3].kv, 64.0 * 262'144 * 30'720);
}

TEST(Inspection, DistinctExperts) {
  const double many[] = {10, 19.8, 38.8, 74.7, 138.6};
  for (int n = 0; n < 5; ++n) EXPECT_NEAR(distinct_experts(512, 10, 1 << n), many[n], 0.06) << n;
  EXPECT_EQ(distinct_experts(0, 0, 5), 0);
  EXPECT_NEAR(distinct_experts(8, 8, 3), 8, 1e-12);
}

TEST(Inspection, FitIsThatOfOneGpu) {
  const Inspection whole = inspected("qwen3_5_397b_a17b", "sm120", 1, 4096, 4);
  const Inspection i = inspected("qwen3_5_397b_a17b", "sm120", 8, 4096, 4);
  ASSERT_TRUE(whole.fit && i.fit);
  EXPECT_FALSE(whole.fit->fits());
  EXPECT_EQ(whole.fit->most_sequences(), 0);
  EXPECT_EQ(whole.fit->most_context(), 0);
  EXPECT_TRUE(i.fit->fits());
  // Packed for a GPU it takes what the checkpoint does, but for scales of rows.
  EXPECT_GT(whole.fit->weights, 237e9);
  EXPECT_LT(whole.fit->weights, 239e9);
  // On every GPU as a whole: embedding 2.034 GB, routers 0.252, scales of rows of down projections 0.503; each of the
  // two kv heads on four: 0.047 more than an eighth.
  EXPECT_NEAR(static_cast<double>(i.fit->weights - whole.fit->weights / 8), 7.0 / 8 * 2.789e9 + 0.047e9, 0.02e9);
  EXPECT_EQ(i.fit->memory, 96'000'000'000);
  EXPECT_EQ(whole.fit->kv_per_token, 30'720);
  EXPECT_EQ(i.fit->kv_per_token, 15'360);  // two kv heads on eight GPUs: each holds one
  EXPECT_EQ(i.fit->state_per_sequence, 195'379'200 / 8);
  EXPECT_EQ(i.fit->kv(), 4 * 4096 * 15'360);
  const int64_t rest = i.fit->memory - i.fit->weights - i.fit->scratch;
  EXPECT_EQ(i.fit->most_sequences(), rest / (195'379'200 / 8 + 4096 * 15'360));
  EXPECT_EQ(i.fit->most_context(), (rest - 4 * (195'379'200 / 8)) / 4 / 15'360);
}

TEST(Inspection, ShufflePeaksOfOtherEngines) {
  const Inspection i = inspected("qwen3_5_397b_a17b", "sm90", 2, 1024, 1);
  ASSERT_EQ(i.shuffle.size(), 3u);
  const int64_t weights = i.fit->weights;
  EXPECT_EQ(i.shuffle[0].bytes, weights + (64 << 20));
  EXPECT_EQ(i.shuffle[1].bytes, weights + 217'432'719'360 / 2 / 60);
  EXPECT_EQ(i.shuffle[2].bytes, weights + 217'432'719'360 / 2);
  EXPECT_TRUE(i.shuffle[1].fits);
  EXPECT_FALSE(i.shuffle[2].fits);
  for (const ShufflePeak& s : i.shuffle) EXPECT_FALSE(s.source.empty());
}

TEST(Inspection, ContextBeyondTheModelIsRefused) {
  expect_error(Code::kInvalidRequest, {"--context-length", "262144", "262145"},
               [] { inspected("qwen3_5_397b_a17b", "sm90", 1, 262'145); });
}

TEST(Inspection, EveryByteOfTheEmbeddedModelIsCounted) {
  const Inspection i = inspect({.model = METTLE_SOURCE_DIR "/models/mettle-tiny", .device = "sm90"});
  EXPECT_EQ(i.formats, "the checkpoint");
  EXPECT_TRUE(i.refusal.empty()) << i.refusal;
  EXPECT_TRUE(i.missing.empty()) << i.missing.front();
  EXPECT_TRUE(i.unused.empty()) << i.unused.front();
  int64_t sum = 0;
  for (const Content& c : i.contents) sum += c.bytes;
  EXPECT_EQ(sum, i.files_bytes);
  EXPECT_GT(sum, 0);
  for (const Content& c : i.contents) EXPECT_EQ(c.used, c.kind != "mtp layer") << c.kind << " " << c.format;
}

TEST(Inspection, MissingUnusedAndUnknown) {
  const TemporaryFolder folder;
  std::ifstream in(kConfigs + "qwen3_moe_1p4b/config.json");
  const std::string config((std::istreambuf_iterator<char>(in)), {});
  folder.write("config.json", config);
  ToyCheckpoint c;
  c.add_bf16("model.embed_tokens.weight", {2, 2}, {1, 2, 3, 4}).add_bf16("model.stray.weight", {1, 2}, {1, 2});
  c.add_bf16("lm_head.weight", {2, 2}, {1, 2, 3, 4});
  folder.write("model.safetensors", c.file());
  Inspection i = inspect({.model = folder.path(), .device = "sm90"});
  EXPECT_FALSE(i.missing.empty());
  ASSERT_EQ(i.unused.size(), 1u);
  EXPECT_EQ(i.unused[0], "model.stray.weight");
  bool size = false;
  for (const std::string& m : i.missing) size |= m.starts_with("model.embed_tokens: must be [");
  EXPECT_TRUE(size);

  folder.write("config.json", R"({"architectures": ["NobodyForCausalLM"], "model_type": "nobody"})");
  i = inspect({.model = folder.path(), .device = "sm90"});
  EXPECT_NE(i.refusal.find("NobodyForCausalLM"), std::string::npos);
  EXPECT_FALSE(i.fit.has_value());
  EXPECT_FALSE(i.contents.empty());
  EXPECT_NE(inspection_text(i).find("not served by this program"), std::string::npos);
  EXPECT_NE(inspection_json(i).find("\"fit\": null"), std::string::npos);
}

TEST(WeightList, BytesByFormat) {
  EXPECT_EQ(bytes_of(WeightFormat::kNvfp4, 2, 32), 32 + 4);
  EXPECT_EQ(bytes_of(WeightFormat::kFp8, 3, 5), 15);
  EXPECT_EQ(bytes_of(WeightFormat::kFp8Block, 129, 128), 129 * 128 + 2 * 4);
  EXPECT_EQ(bytes_of(WeightFormat::kBf16, 3, 5), 30);
  EXPECT_EQ(bytes_of(WeightFormat::kF32, 3, 5), 60);
}

}  // namespace
}  // namespace mettle
