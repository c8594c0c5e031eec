#include "tensor/device_table.h"

#include <gtest/gtest.h>

#include <set>

namespace mettle {
namespace {

TEST(DeviceTable, HoldsEveryGenerationOnceInOrder) {
  std::set<std::string_view> names;
  int last = 0;
  for (const DeviceFacts& f : device_table()) {
    EXPECT_TRUE(names.insert(f.name).second) << f.name;
    EXPECT_EQ(f.name, "sm" + std::to_string(f.sm));
    EXPECT_GT(f.sm, last);
    last = f.sm;
    EXPECT_TRUE(f.target.starts_with(std::to_string(f.sm))) << f.target;
    EXPECT_GT(f.multiprocessors, 0);
    EXPECT_GT(f.memory, 0);
  }
  EXPECT_EQ(names, (std::set<std::string_view>{"sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121"}));
}

// Measured values: an H200 and three cards of 12.x. Taking one for the other is how kernels were picked that cannot
// run.
TEST(DeviceTable, SharedMemoryIsTheDevicesOwn) {
  EXPECT_EQ(device_of_table("sm80")->shared_per_block, 166912u);
  EXPECT_EQ(device_of_table("sm90")->shared_per_block, 232448u);
  EXPECT_EQ(device_of_table("sm100")->shared_per_block, 232448u);
  for (const char* small : {"sm86", "sm89", "sm120", "sm121"})
    EXPECT_EQ(device_of_table(small)->shared_per_block, 101376u) << small;
}

TEST(DeviceTable, GivesAGpuByNameAndNothingElse) {
  const std::optional<Device> d = device_of_table("sm120");
  ASSERT_TRUE(d.has_value());
  EXPECT_EQ(d->kind, DeviceKind::kCuda);
  EXPECT_EQ(d->sm, 120);
  EXPECT_EQ(d->name, "sm120");
  for (const char* other : {"", "cpu", "sm", "sm12", "sm1200", "SM120", "sm75", "120"})
    EXPECT_FALSE(device_of_table(other).has_value()) << other;
}

}  // namespace
}  // namespace mettle
