#include "checkpoint/anomalies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "checkpoint/toy_checkpoint.h"

namespace mettle {
namespace {

Anomalies anomalies_of(const ToyCheckpoint& c, const AnomalyLimits& limits = {}) {
  const TemporaryFolder folder;
  folder.write("model.safetensors", c.file());
  return find_anomalies(Safetensors::open(folder.path()), limits);
}

// One NVFP4 matrix of [1, 16].
void add_nvfp4(ToyCheckpoint& c, const std::string& module, float global, const std::string& block = "\x38") {
  c.add(module + ".weight", "U8", {1, 8}, std::string(8, '\x12'));
  c.add(module + ".weight_scale", "F8_E4M3", {1, 1}, block);
  c.add_f32(module + ".weight_scale_2", {}, {global});
}

TEST(Anomalies, NothingInAGoodCheckpoint) {
  ToyCheckpoint c;
  add_nvfp4(c, "e.0.gate_proj", 0.5f);
  add_nvfp4(c, "e.0.up_proj", 0.5f);
  c.add_bf16("norm.weight", {2}, {0, -1});
  const Anomalies a = anomalies_of(c);
  EXPECT_TRUE(a.found.empty()) << a.found.front().what;
  EXPECT_EQ(a.tensors_read, 5);
  EXPECT_EQ(a.bytes_read, 2 * (1 + 4) + 4);
  EXPECT_EQ(a.tensors_left, 0);
}

TEST(Anomalies, ValuesOfScales) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -1.f, 0.f}) {
    ToyCheckpoint c;
    add_nvfp4(c, "m", bad);
    const Anomalies a = anomalies_of(c);
    ASSERT_EQ(a.found.size(), 1u) << bad;
    EXPECT_EQ(a.found[0].first, "m.weight_scale_2");
    EXPECT_TRUE(a.found[0].refused);
    EXPECT_NE(a.found[0].value.find("element 0"), std::string::npos);
  }
  ToyCheckpoint block;  // a block of zeros has a scale of zero
  add_nvfp4(block, "m", 1, std::string(1, '\0'));
  EXPECT_TRUE(anomalies_of(block).found.empty());
  ToyCheckpoint nan_block;
  add_nvfp4(nan_block, "m", 1, "\x7F");
  EXPECT_EQ(anomalies_of(nan_block).found.size(), 1u);
  ToyCheckpoint input;  // nothing here reads it, other engines do
  add_nvfp4(input, "m", 1);
  input.add_f32("m.input_scale", {}, {0});
  const Anomalies a = anomalies_of(input);
  ASSERT_EQ(a.found.size(), 1u);
  EXPECT_FALSE(a.found[0].refused);
}

TEST(Anomalies, GateAndUpWithDifferentGlobals) {
  ToyCheckpoint c;
  for (int e = 0; e < 3; ++e) {
    add_nvfp4(c, "e." + std::to_string(e) + ".gate_proj", e == 1 ? 4.f : 1.f);
    add_nvfp4(c, "e." + std::to_string(e) + ".up_proj", e == 2 ? 0.5f : 1.f);
  }
  const Anomalies a = anomalies_of(c);
  ASSERT_EQ(a.found.size(), 1u);
  EXPECT_EQ(a.found[0].count, 2);
  EXPECT_EQ(a.found[0].first, "e.1");
  EXPECT_EQ(a.found[0].value, "up to a factor of 4");
  EXPECT_FALSE(a.found[0].refused);
}

TEST(Anomalies, FormatsThatNobodyReadsAndScalesThatAreNotThere) {
  ToyCheckpoint c;
  c.add("a.weight", "U8", {1, 8}, std::string(8, '\0')).add("b.qweight", "I32", {1, 2}, std::string(8, '\0'));
  c.add("z.weight", "BF16", {0, 4}, "");
  const Anomalies a = anomalies_of(c);
  ASSERT_EQ(a.found.size(), 3u);
  EXPECT_TRUE(a.found[0].refused && a.found[1].refused);
  EXPECT_FALSE(a.found[2].refused);
  std::string all;
  for (const Anomaly& x : a.found) all += x.what + "|" + x.first + "|" + x.value + "\n";
  EXPECT_NE(all.find("AWQ or GPTQ"), std::string::npos) << all;
  EXPECT_NE(all.find("a.weight_scale: is missing"), std::string::npos) << all;
  EXPECT_NE(all.find("z.weight"), std::string::npos) << all;
}

TEST(Anomalies, LargeTensorsAndTheBudgetAreLeftAlone) {
  ToyCheckpoint c;
  c.add_f32("a", {4}, {1, 2, 3, std::nanf("")})
      .add_f32("b", {2}, {1, std::nanf("")})
      .add_f32("c", {1}, {std::nanf("")});
  Anomalies a = anomalies_of(c, {.tensor_bytes = 8});
  EXPECT_EQ(a.tensors_read, 2);
  EXPECT_EQ(a.tensors_left, 1);
  ASSERT_EQ(a.found.size(), 1u);
  EXPECT_EQ(a.found[0].count, 2);
  a = anomalies_of(c, {.tensor_bytes = 16, .total_bytes = 16});
  EXPECT_EQ(a.tensors_read, 1);
  EXPECT_EQ(a.tensors_left, 2);
}

}  // namespace
}  // namespace mettle
