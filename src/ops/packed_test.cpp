// tile16 holds exactly what the checkpoint holds: element() * row_scale == RawMatrix::at for every weight.
#include "ops/packed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "base/error.h"
#include "tensor/dtype.h"

namespace mettle {
namespace {

// A matrix of random codes in memory of its own.
struct Weight {
  RawMatrix m;
  std::vector<uint8_t> data, scales;
  std::vector<float> row_scale;
};

Weight random_weight(WeightFormat format, int64_t rows, int64_t cols, std::mt19937& random, bool per_channel = false) {
  Weight w;
  const auto byte = [&] { return static_cast<uint8_t>(random()); };
  const auto finite_e4m3 = [&] {
    const uint8_t code = byte();
    return static_cast<uint8_t>((code & 127) == 127 ? code - 1 : code);
  };
  w.m.format = format;
  w.m.rows = rows;
  w.m.cols = cols;
  w.m.name = "weight";
  const int64_t bits = format == WeightFormat::kNvfp4  ? 4
                       : format == WeightFormat::kBf16 ? 16
                       : format == WeightFormat::kF32  ? 32
                                                       : 8;
  w.m.row_bytes = cols * bits / 8 + 3;  // a view into something wider
  w.data.resize(static_cast<size_t>(rows * w.m.row_bytes));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < cols; ++k) {
      uint8_t* at = w.data.data() + r * w.m.row_bytes + k * bits / 8;
      const float value =
          std::ldexp(static_cast<float>(random()) * 0x1p-31f - 1.f, static_cast<int>(random() % 60) - 40);
      const uint16_t half = float_to_bf16(value);
      switch (format) {
        case WeightFormat::kNvfp4:
          *at = byte();
          break;
        case WeightFormat::kBf16:
          std::memcpy(at, &half, 2);
          break;
        case WeightFormat::kF32:
          std::memcpy(at, &value, 4);
          break;
        default:
          *at = finite_e4m3();
      }
    }
  w.m.data = w.data.data();
  if (format == WeightFormat::kNvfp4) {
    w.m.scale_row_bytes = cols / 16 + 1;
    for (int64_t i = 0; i < rows * w.m.scale_row_bytes; ++i) w.scales.push_back(finite_e4m3());
  }
  if (format == WeightFormat::kFp8Block) {
    const int64_t blocks = (cols + 127) / 128;
    w.m.first_row = 100;  // the view starts inside a block of 128 rows
    w.m.scale_row_bytes = blocks * 4;
    w.scales.resize(static_cast<size_t>((rows + 100 + 127) / 128 * blocks * 4));
    for (size_t i = 0; i < w.scales.size(); i += 4) {
      const float s = 0.01f + static_cast<float>(random() % 1000) / 777.f;
      std::memcpy(&w.scales[i], &s, 4);
    }
  }
  w.m.scales = w.scales.empty() ? nullptr : w.scales.data();
  if (format == WeightFormat::kNvfp4 || format == WeightFormat::kFp8)
    w.m.global_scale = 0.001f + static_cast<float>(random() % 997) / 1024.f;
  if (per_channel) {
    w.m.global_scale = 1.f;
    for (int64_t r = 0; r < rows; ++r) w.row_scale.push_back(0.5f + static_cast<float>(random() % 1000) / 999.f);
    w.m.row_scale = w.row_scale.data();
  }
  return w;
}

// Every product in the formula is exact in float64 or one rounding of it, so the packed weight is told to the last bit.
void expect_same(const RawSegments& segments) {
  const PackedMatrix p = pack_tile16(segments);
  ASSERT_EQ(p.rows, rows_of(segments));
  ASSERT_EQ(p.cols, cols_of(segments));
  EXPECT_EQ(p.bytes(), packed_bytes(Layout::kTile16, p.format, p.rows, p.cols));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p.data) % 64, 0u);
  int64_t row = 0;
  for (const RawMatrix& m : segments)
    for (int64_t r = 0; r < m.rows; ++r, ++row) {
      const auto scale = static_cast<double>(p.row_scale[row]);
      EXPECT_EQ(scale, static_cast<double>(m.global_scale) *
                           (m.row_scale != nullptr ? static_cast<double>(m.row_scale[r]) : 1.0));
      std::vector<double> whole(static_cast<size_t>(m.cols));
      m.read_row(r, whole.data());
      for (int64_t k = 0; k < m.cols; ++k) {
        const double got = static_cast<double>(element(p, row, k)) * scale, want = m.at(r, k);
        ASSERT_EQ(whole[static_cast<size_t>(k)], want) << "read_row: " << name_of(m.format) << " " << r << ", " << k;
        if (m.format == WeightFormat::kFp8Block) {  // widened value times block scale in float32: one rounding
          ASSERT_EQ(static_cast<float>(want), static_cast<float>(got)) << row << ", " << k;
        } else {
          ASSERT_EQ(want, got) << name_of(m.format) << " " << row << ", " << k;
        }
      }
    }
}

TEST(PackedTile16, HoldsEveryWeightOfEveryFormat) {
  std::mt19937 random(2);
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block, WeightFormat::kNvfp4})
    for (const int64_t rows : {1, 15, 16, 17, 48, 131})
      for (const int64_t cols : {16, 48, 128, 144, 272}) {
        const Weight w = random_weight(format, rows, cols, random);
        expect_same({w.m});
      }
}

TEST(PackedTile16, OddColumns) {
  std::mt19937 random(3);
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp8Block})
    for (const int64_t cols : {1, 7, 129, 255}) {
      const Weight w = random_weight(format, 5, cols, random);
      expect_same({w.m});
    }
}

TEST(PackedTile16, SegmentsKeepTheirGlobals) {
  std::mt19937 random(4);
  for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kFp8, WeightFormat::kBf16}) {
    const Weight a = random_weight(format, 5, 64, random), b = random_weight(format, 30, 64, random),
                 c = random_weight(format, 1, 64, random);
    expect_same({a.m, b.m, c.m});
    expect_same({b.m.slice_rows(3, 20), a.m.slice_rows(4, 5)});
    expect_same({c.m.slice_cols(16, 48), a.m.slice_cols(16, 48)});
  }
  const Weight channel = random_weight(WeightFormat::kFp8, 19, 64, random, true);
  expect_same({channel.m});
  expect_same({channel.m.slice_rows(7, 19)});
}

TEST(PackedTile16, PaddingIsZero) {
  std::mt19937 random(5);
  const Weight w = random_weight(WeightFormat::kNvfp4, 17, 32, random);
  PackedMatrix p = pack_tile16({w.m});
  ASSERT_EQ(p.tiles, 2);
  p.rows = 32;  // look behind the last row
  for (int64_t r = 17; r < 32; ++r) {
    EXPECT_EQ(p.row_scale[r], 0.f);
    for (int64_t k = 0; k < 32; ++k) EXPECT_EQ(element(p, r, k), 0.f);
  }
}

TEST(PackedTile16, NothingPacksToNothing) {
  const PackedMatrix p = pack_tile16({});
  EXPECT_TRUE(p.empty());
  EXPECT_EQ(p.bytes(), 0u);
}

TEST(PackedTile16, SaysWhatDoesNotFit) {
  std::mt19937 random(6);
  const Weight a = random_weight(WeightFormat::kNvfp4, 4, 32, random),
               b = random_weight(WeightFormat::kBf16, 4, 32, random),
               c = random_weight(WeightFormat::kNvfp4, 4, 48, random);
  for (const RawSegments& bad : {RawSegments{a.m, b.m}, RawSegments{a.m, c.m}}) EXPECT_THROW(pack_tile16(bad), Error);
  RawMatrix odd = a.m;
  odd.cols = 24;
  EXPECT_THROW(pack_tile16({odd}), Error);
  const PackedMatrix p = pack_tile16({a.m});
  EXPECT_THROW(element(p, 4, 0), Error);
  EXPECT_THROW(element(p, 0, 32), Error);
  EXPECT_THROW(element(p, -1, 0), Error);
}

}  // namespace
}  // namespace mettle
