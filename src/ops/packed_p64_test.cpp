#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/error.h"
#include "ops/packed.h"
#include "tensor/dtype.h"

namespace mettle {
namespace {

// A random matrix of one format; every code and every scale code (zero and subnormals too) occurs.
struct Weights {
  std::vector<uint8_t> data, scales;
  RawMatrix raw;

  Weights(WeightFormat format, int64_t rows, int64_t cols, uint32_t seed) {
    std::mt19937 random(seed);
    raw.format = format;
    raw.rows = rows;
    raw.cols = cols;
    raw.row_bytes = format == WeightFormat::kNvfp4 ? cols / 2 : format == WeightFormat::kBf16 ? cols * 2 : cols;
    data.resize(static_cast<size_t>(rows * raw.row_bytes));
    for (uint8_t& b : data) b = static_cast<uint8_t>(random());
    if (format == WeightFormat::kFp8)
      for (uint8_t& b : data) b = (b & 0x7F) == 0x7F ? 0 : b;
    if (format == WeightFormat::kBf16)
      for (size_t i = 1; i < data.size(); i += 2) data[i] &= 0xBF;  // finite
    if (format == WeightFormat::kNvfp4) {
      scales.resize(static_cast<size_t>(rows * cols / 16));
      for (uint8_t& s : scales) s = static_cast<uint8_t>(random() % 0x7F);
      raw.scales = scales.data();
      raw.scale_row_bytes = cols / 16;
    }
    raw.data = data.data();
    raw.global_scale = 0.25f * static_cast<float>(1 + seed % 3);
    raw.name = "test";
  }
};

void expect_same(const RawSegments& segments, RowOrder order) {
  const PackedMatrix m = pack_p64(segments, order);
  int64_t row = 0;
  for (const RawMatrix& s : segments)
    for (int64_t r = 0; r < s.rows; ++r, ++row)
      for (int64_t k = 0; k < s.cols; ++k)
        ASSERT_EQ(static_cast<double>(element(m, row, k)) * s.global_scale, s.at(r, k)) << "row " << row << " k " << k;
}

TEST(PackedP64, ReadsBackBitForBitInEveryFormatAndUnit) {
  for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kBf16, WeightFormat::kFp8})
    for (const int64_t cols : {16, 128, 256, 512, 768, 1040})
      for (const int64_t rows : {1, 16, 40}) {
        if (format == WeightFormat::kBf16) {
          Weights w(format, rows, cols, 7);
          w.raw.global_scale = 1;
          expect_same({w.raw}, RowOrder::kPlain);
        } else {
          expect_same({Weights(format, rows, cols, 7).raw}, RowOrder::kPlain);
        }
      }
}

TEST(PackedP64, SegmentsKeepTheirOwnScalesAndGateUpIsPaired) {
  const Weights gate(WeightFormat::kNvfp4, 24, 256, 1), up(WeightFormat::kNvfp4, 24, 256, 2);
  expect_same({gate.raw, up.raw}, RowOrder::kGateUp);
  const PackedMatrix m = pack_p64({gate.raw, up.raw}, RowOrder::kGateUp);
  EXPECT_EQ(packed_row(m, 0), 0);
  EXPECT_EQ(packed_row(m, 24), 8);
  EXPECT_EQ(packed_row(m, 9), 17);
  EXPECT_EQ(packed_row(m, 33), 25);
  EXPECT_EQ(m.row_scale[0], gate.raw.global_scale);
  EXPECT_EQ(m.row_scale[8], up.raw.global_scale);
}

TEST(Packed, BytesDoNotDependOnThreads) {
  for (const Layout layout : {Layout::kTile16, Layout::kP64})
    for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kBf16, WeightFormat::kFp8})
      for (const int64_t rows : {8, 72, 344}) {
        const Weights a(format, rows, 528, 3), b(format, rows, 528, 4);
        const PackedMatrix alone = pack(layout, {a.raw, b.raw});
        for (const int members : {1, 2, 3, 7}) {
          ThreadTeam team(members);
          const PackedMatrix shared = pack(layout, {a.raw, b.raw}, RowOrder::kPlain, &team);
          ASSERT_EQ(alone.size, shared.size);
          EXPECT_EQ(std::memcmp(alone.data, shared.data, alone.size), 0) << name_of(layout) << " " << name_of(format);
          // Members that pack at the same time, each its own.
          std::vector<PackedMatrix> each(static_cast<size_t>(members));
          team.run([&](int member) { each[static_cast<size_t>(member)] = pack(layout, {a.raw, b.raw}); });
          for (const PackedMatrix& own : each) EXPECT_EQ(std::memcmp(alone.data, own.data, alone.size), 0);
        }
      }
}

TEST(PackedP64, RefusesWhatHasNoForm) {
  Weights w(WeightFormat::kNvfp4, 16, 64, 1);
  w.raw.format = WeightFormat::kF32;
  EXPECT_THROW(pack_p64({w.raw}), Error);
  const Weights odd(WeightFormat::kFp8, 16, 24, 1);
  EXPECT_THROW(pack_p64({odd.raw}), Error);
  const Weights half(WeightFormat::kNvfp4, 24, 64, 1);
  EXPECT_THROW(pack_p64({half.raw}, RowOrder::kGateUp), Error);
}

}  // namespace
}  // namespace mettle
