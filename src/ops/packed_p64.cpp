#include "ops/packed_p64.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "ops/cuda/device/p64.cuh"
#include "tensor/dtype.h"

namespace mettle {
namespace {

constexpr int kTileK = 64;

int unit_tiles_of(WeightFormat format, int64_t cols) {
  if (format == WeightFormat::kBf16) return 2;
  if (format == WeightFormat::kFp8) return 4;
  return cols % 512 == 0 ? 8 : cols % 256 == 0 ? 4 : 2;
}

int64_t tile_bytes_of(WeightFormat format) {
  return format == WeightFormat::kNvfp4 ? 512 + 64 : format == WeightFormat::kBf16 ? 2048 : 1024;
}

// A row of one segment, addressed by column, for a packed row.
struct Row {
  const RawMatrix* matrix = nullptr;  // null: padding
  int64_t row = 0;
  uint8_t scale(int64_t k) const {
    return matrix == nullptr ? 0 : matrix->scales[row * matrix->scale_row_bytes + k / 16];
  }
  uint8_t code(int64_t k) const {
    if (matrix == nullptr || k >= matrix->cols || (scale(k) & 0x7F) == 0) return 0;
    const uint8_t byte = matrix->data[row * matrix->row_bytes + k / 2];
    return k % 2 == 0 ? byte & 15 : byte >> 4;
  }
  uint8_t fp8(int64_t k) const {
    return matrix == nullptr || k >= matrix->cols ? 0 : matrix->data[row * matrix->row_bytes + k];
  }
  uint16_t bf16(int64_t k) const {
    if (matrix == nullptr || k >= matrix->cols) return 0;
    uint16_t v;
    std::memcpy(&v, matrix->data + row * matrix->row_bytes + 2 * k, 2);
    return v;
  }
};

// k of the first of the two weights that lane position t holds in step j, pair half `upper`.
int64_t k_of(int t, int j, int upper) { return 16 * t + 4 * j + 2 * upper; }

void pack_nvfp4(const Row* rows, int64_t k0, int unit_tiles, uint8_t* unit) {
  uint8_t* scales = unit + 512 * unit_tiles;
  for (int tile = 0; tile < unit_tiles; ++tile) {
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const int64_t base = k0 + kTileK * tile;
      for (int j = 0; j < 4; ++j) {
        uint8_t code[4][2];
        for (int p = 0; p < 4; ++p)
          for (int half = 0; half < 2; ++half)
            code[p][half] = rows[g + 8 * (p & 1)].code(base + k_of(t, j, p >> 1) + half);
        const uint32_t word = p64::encode_codes(code);
        std::memcpy(unit + tile * 512 + lane * 16 + j * 4, &word, 4);
      }
      for (int q = 0; q < 2; ++q) {
        const Row& row = rows[g + 8 * q];
        const int64_t k = base + 16 * t;
        const bool there = row.matrix != nullptr && k < row.matrix->cols;
        scales[lane * 2 * unit_tiles + tile * 2 + q] = p64::encode_scale(there ? row.scale(k) : 0);
      }
    }
  }
}

void pack_bf16(const Row* rows, int64_t k0, int unit_tiles, uint8_t* unit) {
  for (int tile = 0; tile < unit_tiles; ++tile)
    for (int j = 0; j < 4; ++j)
      for (int lane = 0; lane < 32; ++lane)
        for (int p = 0; p < 4; ++p)
          for (int half = 0; half < 2; ++half) {
            const uint16_t v = rows[lane / 4 + 8 * (p & 1)].bf16(k0 + kTileK * tile + k_of(lane % 4, j, p >> 1) + half);
            std::memcpy(unit + ((tile * 4 + j) * 32 + lane) * 16 + p * 4 + half * 2, &v, 2);
          }
}

void pack_fp8(const Row* rows, int64_t k0, int unit_tiles, uint8_t* unit) {
  for (int tile = 0; tile < unit_tiles; ++tile)
    for (int j = 0; j < 4; ++j)
      for (int lane = 0; lane < 32; ++lane)
        for (int upper = 0; upper < 2; ++upper) {
          const int64_t k = k0 + kTileK * tile + k_of(lane % 4, j, upper);
          uint8_t* word = unit + ((tile * 2 + j / 2) * 32 + lane) * 16 + (j % 2) * 8 + upper * 4;
          for (int half = 0; half < 2; ++half) {
            word[2 * half + 1] = rows[lane / 4].fp8(k + half);
            word[2 * half] = rows[lane / 4 + 8].fp8(k + half);
          }
        }
}

}  // namespace

P64Matrix pack_p64(const RawSegments& segments, RowOrder order) {
  P64Matrix m;
  if (segments.empty()) return m;
  m.format = segments.front().format;
  m.rows = rows_of(segments);
  m.cols = cols_of(segments);
  if (m.format != WeightFormat::kNvfp4 && m.format != WeightFormat::kBf16 && m.format != WeightFormat::kFp8)
    fail(Code::kInternal, fmt::format("{}: p64 has no form for {}", segments.front().name, name_of(m.format)));
  if (m.cols % 16 != 0 || (order == RowOrder::kGateUp && m.rows % 16 != 0))
    fail(Code::kInternal,
         fmt::format("{}: p64 needs columns (and gate and up rows together) in multiples of 16, got [{}, {}]",
                     segments.front().name, m.rows, m.cols));
  std::vector<Row> all;
  std::vector<float> scale;
  for (const RawMatrix& s : segments) {
    if (s.format != m.format || s.cols != m.cols)
      fail(Code::kInternal, fmt::format("{}: differs from the segment before it", s.name));
    for (int64_t r = 0; r < s.rows; ++r) {
      all.push_back({&s, r});
      scale.push_back(s.global_scale * (s.row_scale != nullptr ? s.row_scale[r] : 1.f));
    }
  }
  m.tiles = static_cast<int>((m.rows + 15) / 16);
  m.unit_tiles = unit_tiles_of(m.format, m.cols);
  m.units = static_cast<int>((m.cols + kTileK * m.unit_tiles - 1) / (kTileK * m.unit_tiles));
  m.unit_bytes = tile_bytes_of(m.format) * m.unit_tiles;
  m.payload = Buffer(static_cast<size_t>(m.bytes()));
  m.row_scale.assign(static_cast<size_t>(m.tiles) * 16, 0.f);
  m.row_of.assign(static_cast<size_t>(m.tiles) * 16, -1);
  for (int tile = 0; tile < m.tiles; ++tile) {
    Row rows[16];
    for (int r = 0; r < 16; ++r) {
      const int64_t row = order == RowOrder::kPlain ? tile * 16 + r
                          : r < 8                   ? tile * 8 + r
                                                    : m.rows / 2 + tile * 8 + r - 8;
      if (row >= m.rows) continue;
      rows[r] = all[static_cast<size_t>(row)];
      const auto at = static_cast<size_t>(tile * 16 + r);
      m.row_of[at] = static_cast<int32_t>(row);
      m.row_scale[at] = scale[static_cast<size_t>(row)];
    }
    for (int unit = 0; unit < m.units; ++unit) {
      uint8_t* out = m.payload.data() + (int64_t{tile} * m.units + unit) * m.unit_bytes;
      const int64_t k0 = int64_t{unit} * kTileK * m.unit_tiles;
      if (m.format == WeightFormat::kNvfp4) pack_nvfp4(rows, k0, m.unit_tiles, out);
      if (m.format == WeightFormat::kBf16) pack_bf16(rows, k0, m.unit_tiles, out);
      if (m.format == WeightFormat::kFp8) pack_fp8(rows, k0, m.unit_tiles, out);
    }
  }
  return m;
}

float element(const P64Matrix& m, int64_t row, int64_t col) {
  size_t at = 0;
  while (m.row_of[at] != row) ++at;
  const auto tile = static_cast<int64_t>(at / 16);
  const int r = static_cast<int>(at % 16), q = r / 8, g = r % 8;
  const int64_t unit = col / (kTileK * m.unit_tiles), in_unit = col % (kTileK * m.unit_tiles);
  const int in_tile = static_cast<int>(in_unit % kTileK), t = in_tile / 16, j = in_tile % 16 / 4,
            upper = in_tile % 4 / 2, half = in_tile % 2;
  const int lane = 4 * g + t, tile_in_unit = static_cast<int>(in_unit / kTileK), p = 2 * upper + q;
  const uint8_t* base = m.payload.data() + (tile * m.units + unit) * m.unit_bytes;
  const auto half_of = [&](uint32_t pair) {
    return bf16_to_float(static_cast<uint16_t>(half == 0 ? pair : pair >> 16));
  };
  if (m.format == WeightFormat::kBf16) {
    uint16_t v;
    std::memcpy(&v, base + ((tile_in_unit * 4 + j) * 32 + lane) * 16 + p * 4 + half * 2, 2);
    return bf16_to_float(v);
  }
  uint32_t word;
  if (m.format == WeightFormat::kFp8) {
    std::memcpy(&word, base + ((tile_in_unit * 2 + j / 2) * 32 + lane) * 16 + (j % 2) * 8 + upper * 4, 4);
    uint32_t a, b;
    p64::decode_fp8(word, &a, &b);
    return half_of(q == 0 ? a : b) * 0x1p120f;
  }
  std::memcpy(&word, base + tile_in_unit * 512 + lane * 16 + j * 4, 4);
  uint32_t pairs[4];
  p64::decode_codes(word, pairs);
  const uint32_t scale = base[512 * m.unit_tiles + lane * 2 * m.unit_tiles + tile_in_unit * 2 + q];
  const float s = bf16_to_float(static_cast<uint16_t>(p64::decode_scale(scale | scale << 16)));
  return half_of(pairs[p]) * s * p64::kNvfp4Out;
}

}  // namespace mettle
