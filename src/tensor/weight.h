// Raw weights: 2-D views of checkpoint memory in one of the formats a checkpoint may hold. Formats are semantics:
//   kNvfp4      w = e2m1 * e4m3(block scale of 16 along k) * row_scale   element 2j in the low nibble
//   kFp8        w = e4m3 * row_scale          (per tensor: all rows equal; per channel: one per row)
//   kFp8Block   w = e4m3 * block_scale[row / 128][k / 128]
//   kBf16, kF32 as they are (F16 and F64 tensors are converted by the checkpoint reader)
// A projection is a list of segments stacked along the rows: q, k and v with different global scales, or the rows that
// a rank keeps. Sources: Hugging Face layouts of ModelOpt and compressed-tensors.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

enum class WeightFormat : uint8_t { kF32, kBf16, kFp8, kFp8Block, kNvfp4 };
std::string_view name_of(WeightFormat format);  // f32 bf16 fp8 fp8_block nvfp4

struct RawMatrix {
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0, cols = 0;        // out features, in features (k)
  const uint8_t* data = nullptr;     // first element of the view
  int64_t row_bytes = 0;             // distance of rows in data
  const uint8_t* scales = nullptr;   // kNvfp4: e4m3 [rows, cols/16]; kFp8Block: f32 [ceil(rows/128), ceil(cols/128)]
  int64_t scale_row_bytes = 0;       // distance of scale rows (kNvfp4: per row; kFp8Block: per 128 rows)
  int64_t first_row = 0;             // kFp8Block: row of the whole tensor that data starts at (picks the scale row)
  float global_scale = 1.f;          // multiplier of every row (kNvfp4: scale_2; kFp8: per-tensor scale)
  const float* row_scale = nullptr;  // [rows] or null; multiplies with global_scale. kFp8: one scale per channel.
                                     // kNvfp4: several globals in one matrix (fused experts)
  std::string name;                  // module name in the checkpoint, for messages

  RawMatrix slice_rows(int64_t begin, int64_t end) const;
  // begin and end must be multiples of 16 (kNvfp4) or 128 (kFp8Block).
  RawMatrix slice_cols(int64_t begin, int64_t end) const;
  // One weight, exactly as the formula says, in float64. The oracle's only way to read weights, with read_row().
  double at(int64_t row, int64_t col) const;
  // out[col] = at(row, col) for all columns.
  void read_row(int64_t row, double* out) const;
};

using RawSegments = std::vector<RawMatrix>;  // stacked along rows; same cols
int64_t rows_of(const RawSegments& segments);
int64_t cols_of(const RawSegments& segments);  // 0 for none

}  // namespace mettle
