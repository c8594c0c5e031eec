#include "base/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace mettle {
namespace {

using testing::HasSubstr;

class NvmlTest : public testing::Test {
 protected:
  ~NvmlTest() override {
    unsetenv("FAKE_NVML");
    unsetenv("FAKE_NVML_PID");
  }
  static void mood(const char* name) { setenv("FAKE_NVML", name, 1); }
};

TEST_F(NvmlTest, WhatIsNotThereAnswersNothing) {
  const Nvml nvml("libnone-of-that-name.so.1");
  EXPECT_FALSE(nvml.loaded());
  EXPECT_THAT(nvml.why_not(), HasSubstr("libnone-of-that-name.so.1"));
  unsigned count = 7;
  EXPECT_EQ(nvml.count(count), Nvml::kMissing);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(nvml.text("nvmlSystemGetDriverVersion"), "");
  EXPECT_FALSE(nvml.power_mw(nullptr));
  EXPECT_FALSE(nvml.memory(nullptr));
  EXPECT_TRUE(nvml.processes(nullptr).empty());
  EXPECT_EQ(nvml.error_text(3), "error 3");
}

TEST_F(NvmlTest, ALibraryWithoutItsFunctionsAndOneThatRefuses) {
  const Nvml other("libc.so.6");
  EXPECT_TRUE(other.loaded());
  EXPECT_EQ(other.why_not(), "has no nvmlInit_v2");
  mood("mismatch");
  const Nvml refuses(METTLE_FAKE_NVML);
  EXPECT_EQ(refuses.code(), 18);
  EXPECT_EQ(refuses.why_not(), "Driver/library version mismatch");
  mood("bare");
  EXPECT_EQ(Nvml(METTLE_FAKE_NVML).why_not(), "error 999");
}

TEST_F(NvmlTest, Answers) {
  mood("good");
  setenv("FAKE_NVML_PID", "4242", 1);
  const Nvml nvml(METTLE_FAKE_NVML);
  EXPECT_EQ(nvml.why_not(), "");
  EXPECT_EQ(nvml.text("nvmlSystemGetDriverVersion"), "580.95.05");
  EXPECT_EQ(nvml.text("nvmlNoSuchFunction"), "");
  unsigned count = 0;
  EXPECT_EQ(nvml.count(count), 0);
  ASSERT_EQ(count, 2u);
  Nvml::Gpu gpu = nullptr;
  ASSERT_EQ(nvml.gpu(0, gpu), 0);
  EXPECT_EQ(nvml.text(gpu, "nvmlDeviceGetName"), "NVIDIA RTX PRO 6000 Blackwell");
  EXPECT_EQ(nvml.clock_mhz(gpu), 2430u);
  EXPECT_EQ(nvml.most_clock_mhz(gpu), 3090u);
  EXPECT_EQ(nvml.power_mw(gpu), 100000u);
  EXPECT_EQ(nvml.power_limit_mw(gpu), 600000u);
  EXPECT_FALSE(nvml.number(gpu, "nvmlNoSuchFunction", 1));
  ASSERT_TRUE(nvml.memory(gpu));
  EXPECT_EQ(nvml.memory(gpu)->total, 96ull << 30);
  EXPECT_EQ(nvml.memory(gpu)->used, 600ull << 20);
  ASSERT_EQ(nvml.processes(gpu).size(), 1u);
  EXPECT_EQ(nvml.processes(gpu)[0].pid, 4242u);
  EXPECT_EQ(nvml.processes(gpu)[0].bytes, 19ull << 30);
  ASSERT_EQ(nvml.gpu(1, gpu), 0);
  EXPECT_TRUE(nvml.processes(gpu).empty());
}

TEST_F(NvmlTest, NumbersAndTextsOutOfProportion) {
  mood("odd");
  const Nvml nvml(METTLE_FAKE_NVML);
  unsigned count = 0;
  EXPECT_EQ(nvml.count(count), 0);
  EXPECT_EQ(count, Nvml::kMostGpus);
  Nvml::Gpu gpu = nullptr;
  ASSERT_EQ(nvml.gpu(63, gpu), 0);
  EXPECT_EQ(nvml.text(gpu, "nvmlDeviceGetName").size(), 127u);  // a name without an end
  EXPECT_TRUE(nvml.processes(gpu).empty());                     // many counted, none told
}

}  // namespace
}  // namespace mettle
