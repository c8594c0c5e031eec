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
//
// p64 (CUDA, SM80+): weights as the 16-row operand of mma.m16n8k16 and of register-A wgmma. Tiles of 16 rows x 64 k;
// rows padded to 16, k to a whole unit. Inside a tile lane l (g = l / 4, t = l % 4) holds, for each of the four k16
// steps j, the weights of rows g and g + 8 at k = 16t + 4j + {0, 1} and {2, 3}: its activations are x[16t .. 16t+15],
// contiguous, and its NVFP4 weights share one block scale per row.
//   nvfp4   unit = `unit_tiles` tiles (8, 4 or 2, the most that divides k): [tile][lane][16 bytes of codes], then
//           [lane][tile][2] scales. A code word of 8 weights has its bits placed so that three shifts decode it to bf16
//           (cuda/device/p64.cuh); scales are recoded E4M3 -> 8-bit "E5M3" (exact; a zero scale zeroes its codes).
//   bf16    unit = 2 tiles: [tile][j][lane][16 bytes]
//   fp8     unit = 4 tiles: [tile][j / 2][lane][16 bytes], bytes of two rows interleaved so that one shift decodes a
//           pair
// Units lie [tile][unit][unit_bytes], then row_scale in packed row order. Order kGateUp puts rows 0-7 of a tile to gate
// and 8-15 to the matching up rows: SwiGLU stays in registers.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/thread_team.h"
#include "tensor/buffer.h"
#include "tensor/device.h"
#include "tensor/place.h"
#include "tensor/weight.h"

namespace mettle {

enum class Layout : uint8_t { kNone, kTile16, kP64 };
std::string_view name_of(Layout layout);  // none, tile16, p64
// All backends of a device read one layout.
inline Layout layout_of(DeviceKind kind) { return kind == DeviceKind::kCuda ? Layout::kP64 : Layout::kTile16; }

enum class Payload : uint8_t { kNvfp4, kBf16, kF32, kFp8 };
// kGateUp: rows are [gate; up], paired as p64 says; rows must be a multiple of 16. tile16 knows kPlain alone.
enum class RowOrder : uint8_t { kPlain, kGateUp };

struct PackedMatrix {
  Layout layout = Layout::kNone;
  Payload payload = Payload::kBf16;
  WeightFormat format = WeightFormat::kBf16;  // what it was in the checkpoint
  int64_t rows = 0, cols = 0;                 // without padding
  int64_t tiles = 0;                          // ceil(rows / 16)
  int64_t k_padded = 0;                       // cols rounded up to 16 (nvfp4), 2 (bf16), 1 (f32)
  const uint8_t* data = nullptr;              // payload, 64-byte aligned
  const uint8_t* scales = nullptr;            // nvfp4: e4m3 [tiles][k_padded/16][16]
  const float* row_scale = nullptr;           // [tiles * 16] packed rows, always present: multiplies once per output
  const float* k_scale = nullptr;             // fp8_block: [tiles][ceil(cols/128)][16], else null
  RowOrder order = RowOrder::kPlain;
  int units = 0, unit_tiles = 0;          // p64: units along k, tiles of 64 k in a unit
  int64_t unit_bytes = 0;                 // p64
  std::shared_ptr<const Buffer> storage;  // small matrices share one: weights of a few hundred KiB lie on huge pages
  size_t size = 0;                        // bytes in storage

  bool empty() const { return rows == 0; }
  size_t bytes() const { return size; }
  int64_t tile_bytes() const;  // payload bytes of one tile
};

// Bytes that packing will take, without packing.
size_t packed_bytes(Layout layout, WeightFormat format, int64_t rows, int64_t cols);
// Stacks the segments along rows. All segments must have one format and one number of columns. Empty: an empty matrix.
// A team shares the tiles; the bytes do not depend on it. Calls without one may come from several threads at a time.
PackedMatrix pack(Layout layout, const RawSegments& segments, RowOrder order = RowOrder::kPlain,
                  ThreadTeam* team = nullptr);
PackedMatrix pack_tile16(const RawSegments& segments, ThreadTeam* team = nullptr);
// Fails with kInternal for what p64_holds() refuses.
PackedMatrix pack_p64(const RawSegments& segments, RowOrder order = RowOrder::kPlain, ThreadTeam* team = nullptr);
// p64 has a form for nvfp4, bf16 and fp8 (per tensor or row), for columns that are a multiple of 16.
bool p64_holds(WeightFormat format, int64_t cols);

// Place of a matrix row among the packed rows.
int64_t packed_row(const PackedMatrix& m, int64_t row);
// One weight before row_scale, exact in float32 (code * block scale, or the widened value times k_scale in float32 for
// fp8_block). The full weight is element(m, r, k) * row_scale[packed_row(m, r)]. m lies in host memory.
float element(const PackedMatrix& m, int64_t row, int64_t col);

// The same matrix in memory of a device; its host memory is let go of by the caller.
PackedMatrix place_matrix(const PackedMatrix& m, Place& place);

}  // namespace mettle
