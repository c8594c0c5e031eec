// BF16 rows as FP8 with a scale each.
#include "checkpoint/requantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "checkpoint/toy_checkpoint.h"

namespace mettle {
namespace {

struct Bf16 {
  std::vector<uint16_t> bits;
  RawMatrix raw;
  Bf16(int64_t rows, int64_t cols, const std::vector<float>& values) {
    for (const float v : values) bits.push_back(float_to_bf16(v));
    raw.rows = rows;
    raw.cols = cols;
    raw.data = reinterpret_cast<const uint8_t*>(bits.data());
    raw.row_bytes = 2 * cols;
    raw.name = "layer.q_proj";
  }
};

TEST(Requantise, EveryRowHasItsOwnScaleAndRoundsToNearest) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const int64_t rows = 37, cols = 80;
  std::vector<float> values;
  for (int64_t i = 0; i < rows * cols; ++i)
    values.push_back(std::ldexp(normal(random), static_cast<int>(i / cols) - 18));
  const Bf16 bf16(rows, cols, values);
  WeightMemory memory;
  ThreadTeam team(3);
  const RawMatrix fp8 = requantised_fp8(bf16.raw, memory, &team);
  EXPECT_EQ(fp8.format, WeightFormat::kFp8);
  EXPECT_EQ(fp8.name, "layer.q_proj");
  for (int64_t r = 0; r < rows; ++r) {
    double largest = 0;
    for (int64_t k = 0; k < cols; ++k) largest = std::max(largest, std::fabs(bf16.raw.at(r, k)));
    ASSERT_EQ(fp8.row_scale[r], static_cast<float>(largest) / 448.f) << r;
    for (int64_t k = 0; k < cols; ++k) {
      const double want = bf16.raw.at(r, k), got = fp8.at(r, k), scale = static_cast<double>(fp8.row_scale[r]);
      // Half of the format's step: an eighth of the power of two below, subnormal codes 2^-9 scales apart.
      const double step = std::max(std::ldexp(1.0, std::ilogb(std::max(std::fabs(want) / scale, 1e-30)) - 3), 0x1p-9);
      ASSERT_LE(std::fabs(got - want), step / 2 * scale * (1 + 1e-6)) << r << " " << k;
    }
  }
  WeightMemory alone;
  const RawMatrix same = requantised_fp8(bf16.raw, alone, nullptr);
  EXPECT_EQ(std::memcmp(same.data, fp8.data, static_cast<size_t>(rows * cols)), 0);
}

TEST(Requantise, RowsOfZerosOneColumnAndTheSmallestNumbers) {
  const Bf16 bf16(4, 1, {0, -3, 0x1p-133f, 0x1.fep127f});
  WeightMemory memory;
  const RawMatrix fp8 = requantised_fp8(bf16.raw, memory, nullptr);
  EXPECT_EQ(fp8.at(0, 0), 0);
  EXPECT_NEAR(fp8.at(1, 0), -3, 1e-6);
  EXPECT_TRUE(std::isnormal(fp8.row_scale[2]));
  EXPECT_LE(fp8.at(2, 0), 0x1p-126);
  EXPECT_NEAR(fp8.at(3, 0) / 0x1.fep127, 1, 1e-6);
}

TEST(Requantise, KeepsWhatARankCutsOut) {  // whole rows are scaled before, so that ranks hold the same codes
  std::vector<float> values;
  for (int i = 0; i < 6 * 32; ++i) values.push_back(static_cast<float>(i % 17 - 8) * (i % 32 < 16 ? 1.f : 20.f));
  const Bf16 bf16(6, 32, values);
  WeightMemory memory;
  const RawMatrix fp8 = requantised_fp8(bf16.raw, memory, nullptr), part = fp8.slice_rows(2, 5).slice_cols(0, 16);
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t k = 0; k < 16; ++k) EXPECT_EQ(part.at(r, k), fp8.at(r + 2, k));
}

TEST(Requantise, ValuesThatAreNotFiniteAreRefusedByRow) {
  for (const float bad : {NAN, -INFINITY}) {
    std::vector<float> values(5 * 4, 1.f);
    values[3 * 4 + 2] = values[4 * 4] = bad;
    const Bf16 bf16(5, 4, values);
    WeightMemory memory;
    ThreadTeam team(2);
    expect_error(Code::kBadModel, {"layer.q_proj", "row 3"}, [&] { requantised_fp8(bf16.raw, memory, &team); });
  }
}

}  // namespace
}  // namespace mettle
