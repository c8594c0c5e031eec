#include "sweep/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <thread>

#include "base/nvml.h"

namespace mettle::sweep {
namespace {

using testing::HasSubstr;

class SweepGpu : public testing::Test {
 protected:
  ~SweepGpu() override {
    unsetenv("FAKE_NVML");
    unsetenv("FAKE_NVML_PID");
    unsetenv("FAKE_NVML_LOST");
  }
  static std::vector<GpuState> read(const char* mood, std::string* why_not) {
    setenv("FAKE_NVML", mood, 1);
    const Nvml nvml(METTLE_FAKE_NVML);
    return read_gpus(nvml, why_not);
  }
  std::string why_not_ = "x";
};

TEST_F(SweepGpu, WhatTheDriverTells) {
  setenv("FAKE_NVML_PID", "4242", 1);
  const std::vector<GpuState> gpus = read("good", &why_not_);
  EXPECT_EQ(why_not_, "");
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].name, "NVIDIA RTX PRO 6000 Blackwell");
  EXPECT_EQ(gpus[0].memory_used, uint64_t{600} << 20);
  EXPECT_EQ(gpus[0].memory_total, uint64_t{96} << 30);
  EXPECT_EQ(gpus[0].power_w, 100);
  EXPECT_EQ(gpus[0].power_limit_w, 600);
  EXPECT_EQ(gpus[0].sm_mhz, 2430);
  EXPECT_EQ(gpus[0].sm_mhz_most, 3090);
  EXPECT_EQ(gpus[0].busy_percent, 97);
  EXPECT_THAT(gpus[0].processes, testing::ElementsAre(4242));
  EXPECT_EQ(gpus[1].busy_percent, 3);
  EXPECT_TRUE(gpus[1].processes.empty());
}

TEST_F(SweepGpu, BrokenAndMissingLibrariesHaveASentence) {
  EXPECT_TRUE(read("mismatch", &why_not_).empty());
  EXPECT_EQ(why_not_, "the driver's library does not start: Driver/library version mismatch");
  for (const char* lost : {"0", "1"}) {
    setenv("FAKE_NVML_LOST", lost, 1);
    EXPECT_EQ(read("lost", &why_not_).size(), 1u) << lost;  // the other one is read
  }
  EXPECT_EQ(why_not_, "");
  EXPECT_LE(read("odd", &why_not_).size(), 64u);
  const Nvml none("libnone-of-that-name.so.1");
  EXPECT_TRUE(read_gpus(none, &why_not_).empty());
  EXPECT_THAT(why_not_, HasSubstr("the driver's library is not here"));
}

TEST(SweepGpuReader, ADriverThatHangsHoldsNobodyUp) {
  std::promise<void> wakes;
  const std::shared_future<void> awake = wakes.get_future().share();
  std::atomic<int> asked{0};
  GpuReader reader(
      [&asked, awake](std::string*) {
        ++asked;
        awake.wait();
        return std::vector<GpuState>(1);
      },
      0.05);
  std::string why_not;
  EXPECT_TRUE(reader.read(&why_not).empty());
  EXPECT_EQ(why_not, "the driver's library gave no answer in 0.05 s");
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(reader.read(&why_not).empty());
  EXPECT_LE(asked, 1);  // the one that hangs is not asked again
  wakes.set_value();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::vector<GpuState> gpus;
  while ((gpus = reader.read(&why_not)).empty() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(gpus.size(), 1u);
  EXPECT_EQ(why_not, "");
}

}  // namespace
}  // namespace mettle::sweep
