#include "checkpoint/scan.h"

#include <gtest/gtest.h>

#include <vector>

namespace mettle {
namespace {

TEST(Scan, ATeamFindsTheFirstOffenderToo) {
  constexpr int64_t kCount = int64_t{3} << 20;
  std::vector<uint8_t> codes(kCount, 0x3F);
  for (const int members : {1, 2, 3, 7}) {
    ThreadTeam team(members);
    EXPECT_EQ(find_first(&team, find_nan_e4m3, codes.data(), kCount, 1), -1);
    EXPECT_EQ(find_first(&team, find_not_finite_bf16, codes.data(), kCount / 2, 2), -1);
  }
  for (const int64_t at : {int64_t{0}, int64_t{1} << 20, kCount / 2 + 5, kCount - 1}) {
    std::vector<uint8_t> bad = codes;
    bad[static_cast<size_t>(at)] = bad.back() = 0xFF;
    for (const int members : {1, 2, 3, 7}) {
      ThreadTeam team(members);
      EXPECT_EQ(find_first(&team, find_nan_e4m3, bad.data(), kCount, 1), at) << members;
    }
    EXPECT_EQ(find_first(nullptr, find_nan_e4m3, bad.data(), kCount, 1), at);
  }
  std::vector<uint16_t> halves(static_cast<size_t>(kCount), 0x3F80);
  halves[static_cast<size_t>(kCount - 7)] = halves[static_cast<size_t>(kCount - 3)] = 0x7F80;
  ThreadTeam team(3);
  EXPECT_EQ(find_first(&team, find_not_finite_bf16, reinterpret_cast<const uint8_t*>(halves.data()), kCount, 2),
            kCount - 7);
}

}  // namespace
}  // namespace mettle
