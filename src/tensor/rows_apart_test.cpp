#include "tensor/rows_apart.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace mettle {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<RowApart> of(const std::vector<float>& have, const std::vector<float>& need, int64_t rows) {
  std::vector<RowApart> out(static_cast<size_t>(rows));
  rows_apart(have.data(), need.data(), DType::kF32, rows, std::ssize(have) / rows, out.data());
  return out;
}

TEST(RowsApart, NormsAndTheWorstElementOfEachRow) {
  const auto rows = of({3, 4, 0, 0, 1, 1, 1, 5}, {3, 4, 0, 0, 1, 1, 1, 1}, 2);
  EXPECT_EQ(rows[0].difference, 0);
  EXPECT_EQ(rows[0].norm, 5);
  EXPECT_EQ(rows[0].element, 0);
  EXPECT_EQ(rows[1].difference, 4);
  EXPECT_EQ(rows[1].norm, 2);
  EXPECT_EQ(rows[1].element, 2);  // 4 / (1 + 1)
  EXPECT_EQ(rows[1].column, 3);
  EXPECT_EQ(of({0, 1}, {0, 0}, 1)[0].element, std::numeric_limits<double>::infinity());
  EXPECT_EQ(of({0.f, 2}, {-0.f, 2}, 1)[0].element, 0);
  const RowApart two = of({9, 2, 1, 1}, {1, 1, 1, 1}, 1)[0];  // the larger of two comes first
  EXPECT_EQ(two.element, 4);
  EXPECT_EQ(two.column, 0);
}

TEST(RowsApart, NanIsEqualToTheSameBitsOnly) {
  EXPECT_TRUE(of({kNan, 1}, {kNan, 1}, 1)[0].finite);
  EXPECT_EQ(of({kNan, 1}, {kNan, 1}, 1)[0].difference, 0);
  for (const auto& row : {of({1, kNan, kNan}, {1, 2, 3}, 1)[0], of({1, 2, 3}, {1, INFINITY, 3}, 1)[0],
                          of({1, INFINITY, 3}, {1, -INFINITY, 3}, 1)[0], of({9, kNan, 9}, {1, 2, 3}, 1)[0]}) {
    EXPECT_FALSE(row.finite);
    EXPECT_EQ(row.column, 1);
  }
}

TEST(RowsApart, BitsAreThoseOfTheFirstTensorInTheirColumns) {
  const auto a = of({1, 2, 2, 1, 1, 2}, {0, 0, 0, 0, 0, 0}, 3);
  EXPECT_NE(a[0].bits, a[1].bits);
  EXPECT_EQ(a[0].bits, a[2].bits);
  EXPECT_NE(of({0.f}, {0.f}, 1)[0].bits, of({-0.f}, {0.f}, 1)[0].bits);
  EXPECT_EQ(of({kNan}, {0.f}, 1)[0].bits, of({kNan}, {1.f}, 1)[0].bits);
  EXPECT_NE(of({kNan}, {0.f}, 1)[0].bits, of({-kNan}, {0.f}, 1)[0].bits);  // what no step wrote is NaN too
}

// Every code of the narrow formats, as the conversions have it.
TEST(RowsApart, NarrowFormatsAreWhatTheirCodesMean) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const uint16_t half = static_cast<uint16_t>(code * 257);
    const uint8_t zero8 = 0;
    const uint16_t zero16 = 0;
    RowApart row;
    rows_apart(&byte, &zero8, DType::kE4M3, 1, 1, &row);
    const float e4m3 = e4m3_to_float(byte), bf16 = bf16_to_float(half);
    if (std::isfinite(e4m3)) {
      EXPECT_EQ(row.difference, std::fabs(double{e4m3})) << code;
    }
    EXPECT_EQ(row.finite, std::isfinite(e4m3)) << code;
    rows_apart(&half, &zero16, DType::kBF16, 1, 1, &row);
    if (std::isfinite(bf16)) {
      EXPECT_EQ(row.difference, std::fabs(double{bf16})) << code;
    }
    EXPECT_EQ(row.finite, std::isfinite(bf16)) << code;
  }
}

}  // namespace
}  // namespace mettle
