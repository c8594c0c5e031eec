// Rows of x in the order of the B operand: see product_bulk.h.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mettle::cuda {

struct BulkOrder {
  const uint16_t* x;  // [rows, cols]
  uint8_t* ordered;
  int rows, cols, tiles_k, padded;
};

// Chunk `index` of 16 bytes: in a tile of 64 k lane position t of step j multiplies k = 16 t + 4 j + {0, 1, 2, 3} and
// the k of a k16 step lie t by t, so chunk c of a row holds the pairs 16 t + 2 c + {0, 1} of all four t. Chunks change
// places as the 128-byte swizzle has it.
__device__ __forceinline__ void order_chunk(const BulkOrder& a, int index) {
  const int chunk = index % 8, row = index / 8 % a.padded, tile = index / 8 / a.padded;
  if (tile >= a.tiles_k) return;
  uint32_t pair[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int k = tile * 64 + 16 * t + 2 * chunk;
    pair[t] = row < a.rows && k < a.cols ? *reinterpret_cast<const uint32_t*>(a.x + int64_t{row} * a.cols + k) : 0u;
  }
  uint8_t* to = a.ordered + (int64_t{tile} * a.padded + row) * 128;
  *reinterpret_cast<uint4*>(to + ((chunk ^ (row & 7)) << 4)) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

}  // namespace mettle::cuda
