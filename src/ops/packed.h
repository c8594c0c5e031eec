// Packed weights: what the kernels read. The layout is named, chosen once per plan, and every layout can be read back
// element by element, so that packing is proved bit for bit apart from the kernels.
//
// tile16 (CPU): rows in tiles of 16 (padded with zero weights), K-major inside a tile, so that one vector register
// holds the same k of 16 rows and no horizontal sums are needed.
//   nvfp4   [tile][k/16] groups of 128 payload bytes: two halves of 64 bytes, each 16 dwords (row r = dword r) that
//   hold 8 k:
//           nibble i (bits 4i) = k 2i, nibble 4+i (bits 16+4i) = k 2i+1, i = 0..3; second half: k 8..15.
//           scales [tile][k/16][16] e4m3 bytes. K is padded to a multiple of 16 with zero codes.
//   bf16    [tile][k/2][16][2] bf16, K padded to 2.   FP8 weights are widened to bf16 (exact) with their scale in
//           row_scale (per tensor, per channel) or in k_scale (128-blocks).
//   f32     [tile][k][16] float
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "tensor/buffer.h"
#include "tensor/weight.h"

namespace mettle {

enum class Layout : uint8_t { kNone, kTile16 };
std::string_view name_of(Layout layout);  // none, tile16

enum class Payload : uint8_t { kNvfp4, kBf16, kF32 };

struct PackedMatrix {
  Layout layout = Layout::kNone;
  Payload payload = Payload::kBf16;
  WeightFormat format = WeightFormat::kBf16;  // what it was in the checkpoint
  int64_t rows = 0, cols = 0;                 // without padding
  int64_t tiles = 0;                          // ceil(rows / 16)
  int64_t k_padded = 0;                       // cols rounded up to 16 (nvfp4), 2 (bf16), 1 (f32)
  const uint8_t* data = nullptr;              // payload, 64-byte aligned
  const uint8_t* scales = nullptr;            // nvfp4: e4m3 [tiles][k_padded/16][16]
  const float* row_scale = nullptr;           // [tiles * 16], always present: the multiplier applied once per output
  const float* k_scale = nullptr;             // fp8_block: [tiles][ceil(cols/128)][16], else null
  std::shared_ptr<const Buffer> storage;  // small matrices share one: weights of a few hundred KiB lie on huge pages
  size_t size = 0;                        // bytes in storage

  bool empty() const { return rows == 0; }
  size_t bytes() const { return size; }
  int64_t tile_bytes() const;  // payload bytes of one tile
};

// Bytes that pack_tile16 will take, without packing.
size_t packed_bytes_tile16(WeightFormat format, int64_t rows, int64_t cols);
// Stacks the segments along rows. All segments must have one format and one number of columns.
PackedMatrix pack_tile16(const RawSegments& segments);

// One weight before row_scale, exact in float32 (code * block scale, or the widened value times k_scale in float32 for
// fp8_block). The full weight is element(m, r, k) * row_scale[r].
float element(const PackedMatrix& m, int64_t row, int64_t col);

}  // namespace mettle
