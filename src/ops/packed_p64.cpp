#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "ops/cuda/device/p64.cuh"
#include "ops/packed_storage.h"
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

// A row of one segment; the rows that fill the last tile have no columns.
struct Row {
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;
  int64_t cols = 0;
  float row_scale = 0;
};

uint64_t load64(const uint8_t* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}
void store128(uint8_t* p, uint64_t low, uint64_t high) {
  std::memcpy(p, &low, 8);
  std::memcpy(p + 8, &high, 8);
}

// The four bytes of x as the low bytes of four 16-bit words.
uint64_t spread_bytes(uint64_t x) {
  x &= 0xFFFFFFFFu;
  x = (x | x << 16) & 0x0000FFFF0000FFFFu;
  return (x | x << 8) & 0x00FF00FF00FF00FFu;
}

// A byte of two codes, as each of the four pairs of a word: a word is the "or" of four of them.
const std::array<std::array<uint32_t, 256>, 4>& code_words() {
  static const auto kTable = [] {
    std::array<std::array<uint32_t, 256>, 4> table{};
    for (size_t p = 0; p < 4; ++p)
      for (size_t byte = 0; byte < 256; ++byte) {
        uint8_t code[4][2] = {};
        code[p][0] = byte & 15;
        code[p][1] = static_cast<uint8_t>(byte >> 4);
        table[p][byte] = p64::encode_codes(code);
      }
    return table;
  }();
  return kTable;
}

const std::array<uint8_t, 256>& scale_codes() {
  static const auto kTable = [] {
    std::array<uint8_t, 256> table{};
    for (size_t code = 0; code < 256; ++code) table[code] = p64::encode_scale(static_cast<uint8_t>(code));
    return table;
  }();
  return kTable;
}

void pack_nvfp4(const Row* rows, int64_t k0, int unit_tiles, uint8_t* unit) {
  const auto& words = code_words();
  const auto& codes_of_scales = scale_codes();
  static constexpr uint8_t kZeros[8] = {};
  uint8_t* scales = unit + 512 * unit_tiles;
  for (int tile = 0; tile < unit_tiles; ++tile)
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4;
      const int64_t k = k0 + kTileK * tile + 16 * (lane % 4);
      const uint8_t* codes[2];
      for (int q = 0; q < 2; ++q) {
        const Row& row = rows[g + 8 * q];
        const uint8_t scale = k < row.cols ? row.scales[k / 16] : uint8_t{0};
        // The recoded scale has no zero: the codes of such a block are.
        codes[q] = (scale & 0x7F) == 0 ? kZeros : row.data + k / 2;
        scales[lane * 2 * unit_tiles + tile * 2 + q] = codes_of_scales[scale];
      }
      uint32_t out[4];
      for (int j = 0; j < 4; ++j)
        out[j] = words[0][codes[0][2 * j]] | words[1][codes[1][2 * j]] | words[2][codes[0][2 * j + 1]] |
                 words[3][codes[1][2 * j + 1]];
      std::memcpy(unit + tile * 512 + lane * 16, out, sizeof out);
    }
}

// A lane's 16 bytes of step j: pairs of k 16t + 4j + {0, 1} and {2, 3}, rows g and g + 8 in turn.
void pack_bf16(const Row* rows, int64_t k0, int unit_tiles, uint8_t* unit) {
  static constexpr uint8_t kZeros[32] = {};
  for (int tile = 0; tile < unit_tiles; ++tile)
    for (int lane = 0; lane < 32; ++lane) {
      const Row &a = rows[lane / 4], &b = rows[lane / 4 + 8];
      const int64_t k = k0 + kTileK * tile + 16 * (lane % 4);
      const uint8_t* from_a = k < a.cols ? a.data + 2 * k : kZeros;
      const uint8_t* from_b = k < b.cols ? b.data + 2 * k : kZeros;
      for (int j = 0; j < 4; ++j) {
        const uint64_t x = load64(from_a + 8 * j), y = load64(from_b + 8 * j);
        store128(unit + ((tile * 4 + j) * 32 + lane) * 16, (x & 0xFFFFFFFFu) | y << 32,
                 x >> 32 | (y & 0xFFFFFFFF00000000u));
      }
    }
}

// A lane's 16 bytes of steps j and j + 1: eight k of rows g + 8 and g, byte by byte in turn.
void pack_fp8(const Row* rows, int64_t k0, int unit_tiles, uint8_t* unit) {
  static constexpr uint8_t kZeros[16] = {};
  for (int tile = 0; tile < unit_tiles; ++tile)
    for (int lane = 0; lane < 32; ++lane) {
      const Row &a = rows[lane / 4], &b = rows[lane / 4 + 8];
      const int64_t k = k0 + kTileK * tile + 16 * (lane % 4);
      const uint8_t* from_a = k < a.cols ? a.data + k : kZeros;
      const uint8_t* from_b = k < b.cols ? b.data + k : kZeros;
      for (int half = 0; half < 2; ++half) {
        const uint64_t x = load64(from_a + 8 * half), y = load64(from_b + 8 * half);
        store128(unit + ((tile * 2 + half) * 32 + lane) * 16, spread_bytes(y) | spread_bytes(x) << 8,
                 spread_bytes(y >> 32) | spread_bytes(x >> 32) << 8);
      }
    }
}

// Shape of the packed form; no data yet.
PackedMatrix shape_of(WeightFormat format, int64_t rows, int64_t cols) {
  PackedMatrix m;
  m.layout = Layout::kP64;
  m.format = format;
  m.payload = format == WeightFormat::kNvfp4 ? Payload::kNvfp4
              : format == WeightFormat::kFp8 ? Payload::kFp8
                                             : Payload::kBf16;
  m.rows = rows;
  m.cols = cols;
  m.tiles = (rows + 15) / 16;
  m.unit_tiles = unit_tiles_of(format, cols);
  m.units = static_cast<int>((cols + kTileK * m.unit_tiles - 1) / (kTileK * m.unit_tiles));
  m.k_padded = int64_t{m.units} * m.unit_tiles * kTileK;
  m.unit_bytes = tile_bytes_of(format) * m.unit_tiles;
  return m;
}

size_t payload_bytes(const PackedMatrix& m) { return static_cast<size_t>(m.tiles * m.units * m.unit_bytes); }

size_t total_bytes(const PackedMatrix& m) {
  return (payload_bytes(m) + static_cast<size_t>(m.tiles) * 16 * sizeof(float) + 255) & ~size_t{255};
}

std::vector<Row> rows_of_all(const RawSegments& segments, const PackedMatrix& m) {
  std::vector<Row> all;
  all.reserve(static_cast<size_t>(m.rows));
  for (const RawMatrix& s : segments) {
    if (s.format != m.format || s.cols != m.cols)
      fail(Code::kInternal, fmt::format("{}: must be {} with {} columns like the segment before it, got {} with {}",
                                        s.name, name_of(m.format), m.cols, name_of(s.format), s.cols));
    for (int64_t r = 0; r < s.rows; ++r)
      all.push_back({s.data + r * s.row_bytes, s.scales + r * s.scale_row_bytes, s.cols,
                     s.global_scale * (s.row_scale != nullptr ? s.row_scale[r] : 1.f)});
  }
  return all;
}

}  // namespace

bool p64_holds(WeightFormat format, int64_t cols) {
  return (format == WeightFormat::kNvfp4 || format == WeightFormat::kBf16 || format == WeightFormat::kFp8) &&
         cols % 16 == 0;
}

size_t packed_bytes_p64(WeightFormat format, int64_t rows, int64_t cols) {
  return total_bytes(shape_of(format, rows, cols));
}

PackedMatrix pack_p64(const RawSegments& segments, RowOrder order, ThreadTeam* team) {
  if (segments.empty()) return {};
  const WeightFormat format = segments.front().format;
  const int64_t rows = mettle::rows_of(segments), cols = cols_of(segments);
  if (!p64_holds(format, cols) || (order == RowOrder::kGateUp && rows % 16 != 0))
    fail(
        Code::kInternal,
        fmt::format("{}: p64 needs nvfp4, bf16 or fp8, columns (and gate and up rows together) in multiples of 16, got "
                    "{} [{}, {}]",
                    segments.front().name, name_of(format), rows, cols));
  PackedMatrix m = shape_of(format, rows, cols);
  m.order = order;
  const std::vector<Row> all = rows_of_all(segments, m);
  PackedStorage storage = storage_for(total_bytes(m));
  m.storage = std::move(storage.owner);
  m.size = total_bytes(m);
  m.data = storage.data;
  auto* row_scale = reinterpret_cast<float*>(storage.data + payload_bytes(m));
  m.row_scale = row_scale;
  share_out(team, m.tiles, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      Row rows_of_tile[16];
      for (int64_t r = 0; r < 16; ++r) {
        const int64_t row = order == RowOrder::kPlain ? tile * 16 + r
                            : r < 8                   ? tile * 8 + r
                                                      : m.rows / 2 + tile * 8 + r - 8;
        if (row >= m.rows) continue;
        rows_of_tile[r] = all[static_cast<size_t>(row)];
        row_scale[tile * 16 + r] = rows_of_tile[r].row_scale;
      }
      for (int unit = 0; unit < m.units; ++unit) {
        uint8_t* out = storage.data + (tile * m.units + unit) * m.unit_bytes;
        const int64_t k0 = int64_t{unit} * kTileK * m.unit_tiles;
        if (format == WeightFormat::kNvfp4) pack_nvfp4(rows_of_tile, k0, m.unit_tiles, out);
        if (format == WeightFormat::kBf16) pack_bf16(rows_of_tile, k0, m.unit_tiles, out);
        if (format == WeightFormat::kFp8) pack_fp8(rows_of_tile, k0, m.unit_tiles, out);
      }
    }
  });
  return m;
}

int64_t packed_row_p64(const PackedMatrix& m, int64_t row) {
  if (m.order == RowOrder::kPlain) return row;
  const int64_t half = m.rows / 2, in = row % half;
  return in / 8 * 16 + in % 8 + (row >= half ? 8 : 0);
}

float element_p64(const PackedMatrix& m, int64_t row, int64_t col) {
  const int64_t at = packed_row_p64(m, row), tile = at / 16;
  const int r = static_cast<int>(at % 16), q = r / 8, g = r % 8;
  const int64_t unit = col / (kTileK * m.unit_tiles), in_unit = col % (kTileK * m.unit_tiles);
  const int in_tile = static_cast<int>(in_unit % kTileK), t = in_tile / 16, j = in_tile % 16 / 4,
            upper = in_tile % 4 / 2, half = in_tile % 2;
  const int lane = 4 * g + t, tile_in_unit = static_cast<int>(in_unit / kTileK), p = 2 * upper + q;
  const uint8_t* base = m.data + (tile * m.units + unit) * m.unit_bytes;
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
