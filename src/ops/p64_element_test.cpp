#include <gtest/gtest.h>

#include "ops/case_weights.h"
#include "ops/cuda/reference_product.h"

namespace mettle {
namespace {

// Every weight that the lanes hold is element()'s bit for bit; all rows and columns are covered, padding is zero.
void expect_lanes(const PackedMatrix& packed) {
  const p64::Matrix m = cuda::matrix_of(packed);
  int64_t seen = 0;
  for (int tile = 0; tile < m.tiles; ++tile)
    for (int k_tile = 0; k_tile * 64 < m.cols; ++k_tile)
      for (int lane = 0; lane < 32; ++lane) {
        const p64::LaneWeights lanes = p64::lane_weights(m, tile, k_tile, lane);
        for (int q = 0; q < 2; ++q)
          for (int i = 0; i < 16; ++i) {
            const int at = tile * 16 + lane / 4 + 8 * q, row = p64::matrix_row(m, at);
            const int k = k_tile * 64 + lane % 4 * 16 + i;
            if (row >= m.rows || k >= m.cols) {
              ASSERT_EQ(lanes.w[q][i], 0.f) << "packed row " << at << " k " << k;
              continue;
            }
            ASSERT_EQ(packed_row(packed, row), at);
            ASSERT_EQ(lanes.w[q][i], element(packed, row, k)) << "row " << row << " k " << k;
            ++seen;
          }
      }
  EXPECT_EQ(seen, packed.rows * packed.cols);
}

TEST(P64Element, LanesHoldWhatElementSaysInEveryFormatUnitAndOrder) {
  CaseRandom random(3);
  for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kBf16, WeightFormat::kFp8})
    for (const int64_t cols : {16, 128, 256, 512, 1040})
      for (const int64_t rows : {1, 16, 40, 48}) {
        const CaseWeight w = case_weight(format, {rows}, cols, CaseFill::kWideScales, random);
        expect_lanes(w.packed(Layout::kP64));
        if (rows % 16 == 0) expect_lanes(pack_p64(w.raw, RowOrder::kGateUp));
      }
}

}  // namespace
}  // namespace mettle
