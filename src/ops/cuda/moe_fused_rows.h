// moe of up to 16 rows in one kernel, as moe_fused_small does it for one: router, choice, both products of every chosen
// expert (its weights are read once) and of the shared one, combination. A block a multiprocessor, all on the GPU
// together. They hand each other scores as packets that carry the number of the launch, and rows of h in the workspace
// behind one count of the blocks that have written theirs, which the last block to end sets back. A block that waits
// for seconds ends the kernel with an error. Passes of more rows go to moe_few_rows. Deterministic; sums float32, in an
// order that hangs on a row's own choices alone.
#pragma once
#include <algorithm>

#include "ops/cuda/moe_fused_small.h"

namespace mettle::cuda {

inline constexpr int kFusedRows = 16;       // of a pass, at most
inline constexpr int kFusedRowsWarps = 16;  // of a block

// What of a block's dynamic shared memory lies where, for passes of up to `rows` rows; in bytes, multiples of 16. Rows
// of h take the place of everything before products.
struct MoeFusedRowsShared {
  int x_stride = 0, h_stride = 0;  // values of a row; eight more than it has, so that rows begin in different banks
  int tiles_of_slot = 0;           // tile rows of an expert's gate_up that a block has, at most
  int items = 0;                   // tile rows of all experts that it has, at most
  int parts = 0, table = 0, scales = 0, products = 0, bytes = 0;
};
inline constexpr int kFusedRowsItem = 32;  // bytes of an entry of the table

constexpr MoeFusedRowsShared moe_fused_rows_shared(const MoeProblem& p, int rows, int blocks) {
  const int shared = p.shared_width > 0 ? 1 : 0;
  const int slots = std::min(p.experts, rows * p.top_k) + shared, pairs = rows * (p.top_k + shared);
  const int tiles = p.width / 8, units = p.hidden / 512;
  const int router_rows = (p.experts + (p.shared_gate ? 1 : 0) + 15) / 16 * 16;
  MoeFusedRowsShared s;
  s.x_stride = p.hidden + 8;
  s.h_stride = (p.width % 512 == 0 ? p.width : (p.width + 127) / 128 * 128) + 8;
  s.tiles_of_slot = (tiles + blocks - 1) / blocks;
  s.items = (slots * tiles + blocks - 1) / blocks;
  s.parts = rows * s.x_stride * 2;
  // The scores stand where the parts will be.
  s.table = s.parts + std::max(pairs * s.tiles_of_slot * units * 64, rows * router_rows * 4);
  s.scales = s.table + s.items * kFusedRowsItem;
  s.products = std::max(s.scales + s.items * 64, pairs * s.h_stride * 2);
  s.bytes = s.products + pairs * 64;
  return s;
}
// Of a pass, at most, on such a GPU: 16, 8, or 0 where there is no room for that.
constexpr int moe_fused_rows_most(const MoeProblem& p, int multiprocessors, size_t shared_per_block) {
  constexpr size_t kOwn = 24 << 10;  // of the kernel itself
  for (int rows = kFusedRows; multiprocessors > 0 && rows >= 8; rows /= 2)
    if (static_cast<size_t>(moe_fused_rows_shared(p, rows, multiprocessors).bytes) + kOwn <= shared_per_block)
      return rows;
  return 0;
}

void moe_fused_rows(const MoeArgs& args, CUstream_st* stream);

}  // namespace mettle::cuda
