// linear on the tensor cores of SM90 (wgmma) with x by bulk copies: 256 rows at a time are put in the order of the
// operand (product_bulk.h); then persistent blocks take 128 rows of the matrix after the other against all of them.
// Few rows leave room for two blocks on a multiprocessor.
// Sums: float32, k ascending; a row does not depend on others. Deterministic.
#pragma once
#include "ops/cuda/mma_tiles.h"
#include "ops/cuda/product_bulk.h"

namespace mettle::cuda {

// Of x in the order of the operand, for `rows` rows of `cols` columns.
template <class Carver>
uint8_t* linear_bulk_scratch(Carver& c, int rows, int cols) {
  return c.template take<uint8_t>(bulk_bytes(std::min(rows, kBulkMostRows), (cols + 511) / 512 * 8));
}
void linear_bulk(const MmaTilesArgs& args, uint8_t* ordered);  // without groups

}  // namespace mettle::cuda
