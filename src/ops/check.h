// Checks that several ops share when they look at their arguments.
#pragma once
#include "ops/batch.h"
#include "ops/packed.h"

namespace mettle {

// Fails with kInternal unless the matrix is packed, has that shape and format.
void check_matrix(std::string_view name, const PackedMatrix& m, int64_t rows, int64_t cols, WeightFormat format);
// Fails with kInternal unless the sequences cover the rows in order and have what their caches need.
void check_batch(const Batch& batch, bool needs_blocks, bool needs_state, int64_t slots);

}  // namespace mettle
