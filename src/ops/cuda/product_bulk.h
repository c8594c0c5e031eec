// Products of 17 to 256 rows of x with FP8 or BF16 matrices on the tensor cores of SM90 (wgmma): a block takes 128 rows
// of a matrix against 64, 128 or 256 rows of x over all of k or a part of it. Every row of x is first put in the order
// of the operand, 64 k at a time (bulk_order), so that one asynchronous copy brings what 64 k of all rows are: no
// thread has to load it, and L1 has no part in it. Several sums over parts of k are left one behind the other. Sums:
// float32, k ascending; a row does not depend on others. Deterministic.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/cuda/p64_view.h"
#include "ops/cuda/tile_engine.h"

struct CUstream_st;

namespace mettle::cuda {

inline constexpr int kBulkMostRows = 256;
constexpr int kBulkLeastRows = 17;  // fewer go without shared memory
inline bool bulk_takes(int rows) { return rows >= kBulkLeastRows && rows <= kBulkMostRows; }
inline bool bulk_takes(WeightFormat format) { return format == WeightFormat::kFp8 || format == WeightFormat::kBf16; }
inline bool bulk_built(const Device& device) { return device.sm == 90 && wgmma_built(); }

// Rows of x in a block, at most `most`, and of an ordered x.
constexpr int bulk_block_rows(int rows, int most) { return rows <= 64 ? 64 : rows <= 128 || most < 256 ? 128 : 256; }
constexpr int bulk_padded_rows(int rows) {
  return (rows + bulk_block_rows(rows, 256) - 1) / bulk_block_rows(rows, 256) * bulk_block_rows(rows, 256);
}
constexpr int64_t bulk_bytes(int rows, int tiles_k) { return int64_t{bulk_padded_rows(rows)} * 128 * tiles_k; }
inline int bulk_tiles_k(const P64View& w) { return w.units * w.unit_tiles; }

// x [rows, cols] bf16 to [64 k][rows, padded with zeros][128 bytes].
void bulk_order(const uint16_t* x, int rows, int cols, int tiles_k, uint8_t* ordered, CUstream_st* stream);

struct BulkProducts {
  P64View first, second;                          // of one format and number of columns; the second may be empty
  float *first_y = nullptr, *second_y = nullptr;  // [splits, rows, weight.rows]
  const uint8_t* x = nullptr;                     // as bulk_order() leaves it
  int rows = 0;
  int splits = 1;       // of k, at most as many as units
  int most_rows = 256;  // of x in a block
};
void bulk_products(const BulkProducts& args, CUstream_st* stream);
// The sum of the parts [splits, count] in their order; count is a multiple of 4.
void bulk_sum(const float* parts, int splits, int64_t count, float* y, CUstream_st* stream);

// A product with a matrix of few rows: k is split until there are blocks enough for a GPU.
inline constexpr int kBulkSplits = 8, kBulkParts = 1024, kBulkBlocks = 128;  // kBulkParts: rows times splits
inline int bulk_splits(const P64View& w, int rows) {
  const int n = bulk_block_rows(rows, 128), blocks = (w.tiles + 7) / 8 * ((rows + n - 1) / n);
  return std::max(1, std::min({kBulkSplits, kBulkParts / rows, kBulkBlocks / blocks, w.units}));
}
struct BulkScratch {
  uint8_t* ordered = nullptr;  // x in the order of the operand
  float* parts = nullptr;      // sums over parts of k
};
// For products of at most kBulkMostRows rows with matrices of at most `cols` columns, and of those by bulk_product()
// with matrices of `first` or `second` rows.
template <class Carver>
BulkScratch bulk_scratch(Carver& c, int64_t rows, int64_t cols, int64_t first, int64_t second) {
  const int64_t n = std::min<int64_t>(rows, kBulkMostRows);
  const auto parts = [&](int64_t matrix_rows) {
    const int64_t splits = std::clamp<int64_t>(kBulkBlocks / ((matrix_rows + 127) / 128), 1, kBulkSplits);
    return splits == 1 ? 0 : std::min<int64_t>(kBulkParts, n * splits) * matrix_rows;
  };
  BulkScratch s;
  s.ordered = c.template take<uint8_t>(bulk_bytes(static_cast<int>(n), static_cast<int>((cols + 511) / 512 * 8)));
  s.parts = c.template take<float>(std::max(parts(first), parts(second)));
  return s;
}
// y [rows, w.rows] = x W^T, x [rows, w.cols] bf16.
void bulk_product(const P64View& w, const uint16_t* x, int rows, const BulkScratch& scratch, float* y,
                  CUstream_st* stream);

}  // namespace mettle::cuda
