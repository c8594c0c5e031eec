// Products of p64 weights with many rows on tensor cores (mma.m16n8k16): a block takes 128 rows of weights and 32, 64
// or 128 rows of x, both staged in shared memory. One matrix, or one matrix a group of rows (experts of moe): then the
// groups stand in device memory and the launch covers as many as there can be.
// Sums: float32, k ascending; a row does not depend on others. Deterministic.
#pragma once
#include <cstdint>

#include "ops/cuda/p64_view.h"
#include "ops/cuda/tile_engine.h"
#include "ops/moe.h"

struct CUstream_st;

namespace mettle::cuda {

// Rows of one expert that one block column takes: positions first .. first + count - 1.
struct alignas(16) RowGroup {
  ExpertPointers weights;
  int32_t first = 0, count = 0;
};
struct RowGroups {
  const RowGroup* group = nullptr;
  const int32_t* count = nullptr;   // of groups
  int most = 0;                     // there are never more
  const int32_t* row_of = nullptr;  // [positions] row of x; null: the position itself
};

struct MmaTilesArgs {
  P64View weight;               // with groups: the shape of each
  const uint16_t* x = nullptr;  // [rows, cols] bf16
  int rows = 0;                 // without groups
  RowGroups groups = {};
  // One of the two: the product [position, weight.rows] in packed order, from the experts' down matrices; or, for a
  // matrix in gate_up order, silu(gate) * up [position, weight.rows / 2], from their gate_up matrices.
  float* y = nullptr;
  uint16_t* h = nullptr;
  int block_rows = 32;  // of x in a block: 32, 64 or 128
  CUstream_st* stream = nullptr;
};

void mma_tiles(const MmaTilesArgs& args);  // by the format of the weight
void mma_tiles_nvfp4(const MmaTilesArgs& args);
void mma_tiles_fp8(const MmaTilesArgs& args);
void mma_tiles_bf16(const MmaTilesArgs& args);

// Largest block_rows that still gives every multiprocessor a block.
int tiles_block_rows(const P64View& weight, int rows, TileEngine engine);

}  // namespace mettle::cuda
