// What a pass of moe_tiles keeps between its kernels.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/cuda/mma_tiles.h"
#include "ops/cuda/moe_direct.h"
#include "ops/cuda/moe_few_rows_scratch.h"
#include "ops/cuda/moe_stream.h"
#include "ops/cuda/moe_tiles.h"
#include "ops/cuda/moe_wide.h"

namespace mettle::cuda {

// Rows of x in a block: what an expert gets on average.
inline int moe_block_rows(const MoeProblem& p, int rows, TileEngine engine) {
  const int64_t average = int64_t{rows} * p.top_k / p.experts;
  if (engine == TileEngine::kStream) return average <= 4 ? kMoeStreamLeastRows : kMoeStreamMostRows;
  if (engine == TileEngine::kDirect) return kMoeDirectRows;
  if (engine == TileEngine::kWide) return moe_wide_rows(average);
  if (engine == TileEngine::kWgmma) return average <= 64 ? 64 : average <= 128 ? 128 : 256;
  return average <= 24 ? 32 : average <= 64 ? 64 : 128;
}

// Narrower x has no room for its order of it.
inline bool moe_wide_takes(const MoeProblem& p, int sm) { return sm == 90 && wgmma_built() && p.hidden >= 32; }

// There are never more groups of `block_rows` rows: every expert in use has one that is not full.
inline int moe_most_groups(const MoeProblem& p, int rows, int block_rows) {
  const int pairs = rows * p.top_k;
  return std::min(pairs, pairs / block_rows + p.experts) + (shared_rides(p) ? (rows + block_rows - 1) / block_rows : 0);
}

struct MoeTilesScratch {
  float* logits = nullptr;        // [rows, experts (+ 1)]
  float* shared_scale = nullptr;  // [rows]
  RowGroup* groups = nullptr;
  int32_t* group_count = nullptr;
  int32_t* row_of = nullptr;        // [rows * top_k (+ rows of a riding shared expert)] by position
  int32_t* position = nullptr;      // [rows, top_k]; -1: padding
  uint16_t* h = nullptr;            // [positions, width]; of moe_wide padded
  float* products = nullptr;        // [rows * top_k (+ rows of the shared expert), hidden] by position
  float* shared_gate_up = nullptr;  // of a shared expert that does not ride: [rows, 2 * shared_width], packed order
  uint16_t* shared_h = nullptr;     // [rows, shared_width]
};

// `data` null: only the size.
inline MoeTilesScratch carve_moe_tiles(const MoeProblem& p, int rows, uint8_t* data, size_t* bytes = nullptr) {
  size_t used = 0;
  const auto take = [&](int64_t n) -> void* {
    uint8_t* at = data == nullptr ? nullptr : data + used;
    used += (static_cast<size_t>(n) + 255) / 256 * 256;
    return at;
  };
  const bool rides = shared_rides(p), joins = p.shared_width > 0 && !rides;
  const int64_t n = rows, pairs = n * p.top_k, positions = pairs + (rides ? n : 0);
  MoeTilesScratch s;
  s.logits = static_cast<float*>(take(n * (p.experts + 1) * 4));
  s.shared_scale = static_cast<float*>(take(n * 4));
  // The smallest block makes the most groups.
  s.groups = static_cast<RowGroup*>(take(moe_most_groups(p, rows, kMoeStreamLeastRows) * int64_t{sizeof(RowGroup)}));
  s.group_count = static_cast<int32_t*>(take(4));
  s.row_of = static_cast<int32_t*>(take(positions * 4));
  s.position = static_cast<int32_t*>(take(pairs * 4));
  s.h = static_cast<uint16_t*>(take(positions * wide_stride(p.width) * 2));
  s.products = static_cast<float*>(take((pairs + (p.shared_width > 0 ? n : 0)) * p.hidden * 4));
  s.shared_gate_up = static_cast<float*>(take(joins ? n * 2 * p.shared_width * 4 : 0));
  s.shared_h = static_cast<uint16_t*>(take(joins ? n * p.shared_width * 2 : 0));
  if (bytes != nullptr) *bytes = used;
  return s;
}

}  // namespace mettle::cuda
