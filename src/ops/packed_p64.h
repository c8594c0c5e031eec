// p64 (CUDA, SM80+): weights as the 16-row operand of mma.m16n8k16 and of register-A wgmma. Tiles of 16 rows x 64 k;
// rows padded to 16, k to a whole unit. Inside a tile lane l (g = l / 4, t = l % 4) holds, for each of the four k16
// steps j, the weights of rows g and g + 8 at k = 16t + 4j + {0, 1} and {2, 3}: its activations are x[16t .. 16t+15],
// contiguous, and its NVFP4 weights share one block scale per row.
//   nvfp4  unit = `unit_tiles` tiles (8, 4 or 2, the most that divides k): [tile][lane][16 bytes of codes], then
//          [lane][tile][2] scales. A code word of 8 weights has its bits placed so that three shifts decode it to bf16
//          (device/p64.cuh); scales are recoded E4M3 -> 8-bit "E5M3" (exact; a zero scale zeroes its block's codes).
//   bf16   unit = 2 tiles: [tile][j][lane][16 bytes]
//   fp8    unit = 4 tiles: [tile][j / 2][lane][16 bytes], bytes of two rows interleaved so that one shift decodes a
//   pair
// gate_up packing puts rows 0-7 of a tile to gate and 8-15 to the matching up rows: SwiGLU stays in registers.
#pragma once
#include <cstdint>
#include <vector>

#include "tensor/buffer.h"
#include "tensor/weight.h"

namespace mettle {

struct P64Matrix {
  WeightFormat format = WeightFormat::kNvfp4;  // kNvfp4, kBf16 or kFp8
  int64_t rows = 0, cols = 0;                  // without padding
  int tiles = 0;                               // ceil(rows / 16)
  int units = 0;                               // along k
  int unit_tiles = 0;                          // tiles of 64 k in a unit
  int64_t unit_bytes = 0;
  Buffer payload;                // [tile][unit][unit_bytes]
  std::vector<float> row_scale;  // [tiles * 16], in packed row order
  std::vector<int32_t> row_of;   // [tiles * 16]: matrix row of each packed row, -1 for padding

  int64_t bytes() const { return int64_t{tiles} * units * unit_bytes; }
};

enum class RowOrder {
  kPlain,
  kGateUp
};  // kGateUp: rows are [gate; up], paired as above; rows must be a multiple of 16

// Fails with kInternal for formats that have no p64 form, for columns that are not a multiple of 16, for mixed
// segments.
P64Matrix pack_p64(const RawSegments& segments, RowOrder order = RowOrder::kPlain);
// One weight before row_scale, by matrix row; exact in float32.
float element(const P64Matrix& m, int64_t row, int64_t col);

}  // namespace mettle
