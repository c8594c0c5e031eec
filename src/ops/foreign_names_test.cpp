#include "ops/foreign_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ops/cuda/targets.h"
#include "tensor/device_table.h"

namespace mettle {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

Naming on(const char* device, const char* op, const char* word) {
  const ForeignName* name = find_foreign_name(op, word);
  if (name == nullptr) throw std::runtime_error(std::string("no word ") + word);
  const std::string where = device;
  return translate(*name, where == "cpu" ? Device{.isas = {Isa::kScalar}} : device_of_table(where).value());
}

TEST(ForeignNames, WhatIsPlannedIsNotBuiltWhereItWillRunAndWrongElsewhere) {
  for (const ForeignName& row : planned_backends()) {
    const std::string what = std::string(row.op) + " " + std::string(row.word);
    EXPECT_THAT(backend_names(row.op), Not(Contains(std::string(row.word)))) << what << " has code: no plan any more";
    EXPECT_EQ(find_foreign_name(row.op, row.word), &row) << what;
    bool somewhere = false;
    for (const DeviceFacts& f : device_table()) {
      const Verdict v = translate(row, device_of_table(f.name).value()).verdict;
      EXPECT_TRUE(v.code == VerdictCode::kNotBuilt || v.code == VerdictCode::kWrongSm) << what << " on " << f.name;
      EXPECT_FALSE(v.have.empty() || v.need.empty() || v.sentence.empty() || v.remedy.empty()) << what;
      somewhere = somewhere || v.code == VerdictCode::kNotBuilt;
    }
    EXPECT_TRUE(somewhere) << what;
    EXPECT_EQ(on("cpu", row.op.data(), row.word.data()).verdict.code, VerdictCode::kWrongSm) << what;
  }
  EXPECT_EQ(on("sm120", "moe", "w4a4_mma").verdict.have, "no code");
  EXPECT_EQ(on("sm90", "moe", "w4a4_mma").verdict.need, "sm120 or sm121");
}

TEST(ForeignNames, ARemedyNamesNoBackendThatIsRefusedItself) {
  EXPECT_EQ(what_instead("moe", DeviceKind::kCuda, {"tiles"}), "use w4a16_mma, fused_small or auto");
  EXPECT_EQ(what_instead("attention", DeviceKind::kCuda, {"flash"}), "use auto");
}

TEST(ForeignNames, EveryRowNamesABackendThatExistsOrAReason) {
  std::set<std::string> seen;
  for (const ForeignName& row : foreign_names()) {
    const std::string what = std::string(row.op) + " " + std::string(row.word);
    EXPECT_TRUE(seen.insert(what).second) << what;
    EXPECT_FALSE(row.engines.empty() || row.method.empty() || row.where == 0) << what;
    EXPECT_EQ(find_foreign_name(row.op, row.word), &row) << what;
    EXPECT_THAT(backend_names(row.op), Not(Contains(std::string(row.word)))) << what << " is a name of ours";
    EXPECT_EQ(row.code == VerdictCode::kOk, !row.gpu.empty() || !row.cpu.empty()) << what;
    if (!row.gpu.empty()) {
      EXPECT_THAT(backend_names(row.op, DeviceKind::kCuda), Contains(std::string(row.gpu))) << what;
    }
    if (!row.cpu.empty()) {
      EXPECT_THAT(backend_names(row.op, DeviceKind::kCpu), Contains(std::string(row.cpu))) << what;
    }
  }
}

// Whatever the word and the device: a backend of ours and a line that says so, or a refusal with have, need, remedy.
TEST(ForeignNames, EveryWordHasAnAnswerOnEveryDevice) {
  std::vector<Device> devices = {Device{.isas = {Isa::kScalar}}};
  for (const DeviceFacts& f : device_table()) devices.push_back(device_of_table(f.name).value());
  for (const Device& device : devices)
    for (const ForeignName& row : foreign_names()) {
      const Naming n = translate(row, device);
      const std::string what = std::string(row.op) + " " + std::string(row.word) + " on " + device.name;
      if (n.verdict.ok()) {
        EXPECT_THAT(backend_names(row.op, device.kind), Contains(n.backend)) << what;
        EXPECT_THAT(n.line, HasSubstr(n.backend)) << what;
      } else {
        EXPECT_TRUE(n.backend.empty()) << what;
        EXPECT_FALSE(n.verdict.have.empty() || n.verdict.need.empty() || n.verdict.sentence.empty()) << what;
        EXPECT_THAT(n.verdict.remedy, HasSubstr("use ")) << what;
        EXPECT_TRUE(info_of(n.verdict.code).refusal) << what;
      }
    }
}

TEST(ForeignNames, PrebuiltKernelsOfSm100AreRefusedElsewhere) {
  for (const char* device : {"sm80", "sm90", "sm120", "sm121", "cpu"}) {
    const Verdict v = on(device, "moe", "flashinfer_trtllm").verdict;
    EXPECT_EQ(v.code, VerdictCode::kWrongSm) << device;
    EXPECT_EQ(v.have, device);
    EXPECT_EQ(v.need, "sm100 or sm103");
  }
  EXPECT_EQ(on("sm120", "moe", "flashinfer_trtllm").verdict.remedy, "use w4a16_mma, fused_small, tiles or auto");
  EXPECT_EQ(on("cpu", "moe", "flashinfer_trtllm").verdict.remedy, "use cpu_gemv, cpu_gemm or auto");
  EXPECT_EQ(on("sm100", "moe", "flashinfer_trtllm").verdict.code, VerdictCode::kNotBuilt);
}

TEST(ForeignNames, TheSameMethodIsOurs) {
  EXPECT_EQ(on("sm90", "moe", "marlin").backend, "w4a16_mma");
  EXPECT_EQ(on("sm120", "moe", "triton").backend, "tiles");
  EXPECT_EQ(on("sm90", "linear", "marlin").backend, "mma");
  EXPECT_EQ(on("sm90", "attention", "fa3").backend, "flash");
  EXPECT_EQ(on("sm120", "attention", "fa3").verdict.code, VerdictCode::kWrongSm);
  EXPECT_EQ(on("cpu", "attention", "torch_native").backend, "reference");
  EXPECT_EQ(on("cpu", "moe", "marlin").verdict.code, VerdictCode::kWrongSm);
  EXPECT_EQ(on("sm90", "moe", "flashinfer_mxfp4").verdict.code, VerdictCode::kFormatUnsupported);
  EXPECT_EQ(on("sm90", "attention", "flashmla").verdict.code, VerdictCode::kSemanticsDiffer);
  EXPECT_EQ(on("sm90", "moe", "aiter").verdict.need, "an AMD GPU");
}

TEST(ForeignNames, SpellingOfOtherEnginesIsUnderstood) {
  EXPECT_EQ(find_foreign_name("attention", "FLASH_ATTN"), find_foreign_name("attention", "flash-attn"));
  EXPECT_NE(find_foreign_name("attention", "FLASH_ATTN"), nullptr);
  EXPECT_EQ(find_foreign_name("moe", "fa3"), nullptr);
  for (const char* unknown : {"", "auto", "marlin ", "flashinfer_", "reference"})
    EXPECT_EQ(find_foreign_name("moe", unknown), nullptr) << unknown;
}

TEST(ForeignNames, ACardNewerThanTheTableIsOnlyServedByWhatRunsEverywhere) {
  Device thor = device_of_table("sm103").value();
  thor.sm = 110, thor.name = "sm110";
  EXPECT_EQ(translate(*find_foreign_name("moe", "marlin"), thor).backend, "w4a16_mma");
  EXPECT_EQ(translate(*find_foreign_name("moe", "cutlass"), thor).verdict.code, VerdictCode::kWrongSm);
  thor.sm = 75;
  EXPECT_EQ(translate(*find_foreign_name("moe", "marlin"), thor).verdict.code, VerdictCode::kWrongSm);
}

TEST(CudaTargets, RunWhereTheirCodeCan) {
  struct {
    const char* targets;
    std::set<int> runs_on;
  } const rows[] = {
      {"90a", {90}},
      {"90a-virtual", {90}},
      {"120f", {120, 121}},
      {"121f", {121}},
      {"100a", {100}},
      {"100f-real", {100, 103}},
      {"80-real", {80, 86, 89}},
      {"86-real", {86, 89}},
      {"80", {80, 86, 89, 90, 100, 103, 120, 121}},
      {"89-virtual", {89, 90, 100, 103, 120, 121}},
      {"90a 120f", {90, 120, 121}},
      {"  86-real   103a ", {86, 89, 103}},
      {"", {}},
      {"native", {80, 86, 89, 90, 100, 103, 120, 121}},
  };
  for (const auto& row : rows) {
    std::set<int> runs_on;
    for (const DeviceFacts& f : device_table())
      if (targets_run_on(row.targets, f.sm)) runs_on.insert(f.sm);
    EXPECT_EQ(runs_on, row.runs_on) << row.targets;
  }
}

}  // namespace
}  // namespace mettle
