#include "ops/packed.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "ops/packed_storage.h"
#include "tensor/dtype.h"

namespace mettle {
namespace {

constexpr int64_t kTile = 16;
constexpr int64_t kScaleBlock = 128;

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
size_t align64(size_t n) { return (n + 63) & ~size_t{63}; }

Payload payload_of(WeightFormat format) {
  if (format == WeightFormat::kNvfp4) return Payload::kNvfp4;
  return format == WeightFormat::kF32 ? Payload::kF32 : Payload::kBf16;
}

int64_t padded_k(Payload payload, int64_t cols) {
  return round_up(cols, payload == Payload::kNvfp4 ? 16 : payload == Payload::kBf16 ? 2 : 1);
}

int64_t payload_bytes(Payload payload, int64_t k_padded) {
  return payload == Payload::kNvfp4 ? k_padded * kTile / 2 : k_padded * kTile * (payload == Payload::kBf16 ? 2 : 4);
}

struct Sizes {
  size_t payload, scales, row_scale, k_scale;
  size_t total() const { return payload + scales + row_scale + k_scale; }
};

Sizes sizes_of(WeightFormat format, int64_t rows, int64_t cols) {
  const Payload payload = payload_of(format);
  const int64_t tiles = round_up(rows, kTile) / kTile, k = padded_k(payload, cols);
  Sizes s = {};
  s.payload = align64(static_cast<size_t>(tiles * payload_bytes(payload, k)));
  if (payload == Payload::kNvfp4) s.scales = align64(static_cast<size_t>(tiles * k));
  s.row_scale = align64(static_cast<size_t>(tiles * kTile) * sizeof(float));
  if (format == WeightFormat::kFp8Block)
    s.k_scale =
        align64(static_cast<size_t>(tiles * kTile * (round_up(cols, kScaleBlock) / kScaleBlock)) * sizeof(float));
  return s;
}

// Place of element k of row r inside its tile's payload, in elements of the payload type (nvfp4: nibbles).
int64_t place_nvfp4(int64_t r, int64_t k) {
  const int64_t in_group = k % 16, half = in_group / 8, in_half = in_group % 8;
  const int64_t nibble = in_half / 2 + 4 * (in_half % 2);
  return k / 16 * 256 + half * 128 + r * 8 + nibble;
}
int64_t place_bf16(int64_t r, int64_t k) { return k / 2 * 32 + r * 2 + k % 2; }
int64_t place_f32(int64_t r, int64_t k) { return k * kTile + r; }

template <class T>
T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The rows of one tile; the last tile of a matrix may have fewer than 16. Memory is zero already: padding stays zero.
struct TileRows {
  int count = 0;
  const RawMatrix* matrix[kTile] = {};
  int64_t row[kTile] = {};
  const uint8_t* data[kTile] = {};
};

// Four bytes of codes (k ascending, even k low) to the order of place_nvfp4: even k in the low half, odd k above.
uint32_t spread_codes(uint32_t x) {
  const auto gather = [](uint32_t nibbles) {
    nibbles = (nibbles | nibbles >> 4) & 0x00FF00FFu;
    return (nibbles | nibbles >> 8) & 0xFFFFu;
  };
  return gather(x & 0x0F0F0F0Fu) | gather(x >> 4 & 0x0F0F0F0Fu) << 16;
}

void pack_nvfp4(const TileRows& rows, int64_t cols, uint8_t* tile, uint8_t* scales) {
  auto* out = reinterpret_cast<uint32_t*>(tile);
  for (int64_t half = 0; half < cols / 8; ++half)
    for (int r = 0; r < rows.count; ++r) out[half * kTile + r] = spread_codes(load<uint32_t>(rows.data[r] + half * 4));
  for (int r = 0; r < rows.count; ++r) {
    const uint8_t* from = rows.matrix[r]->scales + rows.row[r] * rows.matrix[r]->scale_row_bytes;
    for (int64_t g = 0; g < cols / 16; ++g) scales[g * kTile + r] = from[g];
  }
}

void pack_f32(const TileRows& rows, int64_t cols, uint8_t* tile) {
  auto* out = reinterpret_cast<uint32_t*>(tile);
  for (int64_t k = 0; k < cols; ++k)
    for (int r = 0; r < rows.count; ++r) out[k * kTile + r] = load<uint32_t>(rows.data[r] + 4 * k);
}

void pack_bf16(const TileRows& rows, int64_t cols, uint8_t* tile) {
  auto* out = reinterpret_cast<uint32_t*>(tile);
  for (int64_t k = 0; k + 2 <= cols; k += 2)
    for (int r = 0; r < rows.count; ++r) out[k / 2 * kTile + r] = load<uint32_t>(rows.data[r] + 2 * k);
  if (cols % 2 == 1)
    for (int r = 0; r < rows.count; ++r) out[cols / 2 * kTile + r] = load<uint16_t>(rows.data[r] + 2 * (cols - 1));
}

const std::array<uint16_t, 256>& e4m3_as_bf16() {
  static const std::array<uint16_t, 256> kTable = [] {
    std::array<uint16_t, 256> table;
    for (int code = 0; code < 256; ++code)
      table[static_cast<size_t>(code)] = float_to_bf16(e4m3_to_float(static_cast<uint8_t>(code)));
    return table;
  }();
  return kTable;
}

void pack_fp8(const TileRows& rows, int64_t cols, uint8_t* tile, float* k_scale) {
  const auto& table = e4m3_as_bf16();
  auto* out = reinterpret_cast<uint32_t*>(tile);
  for (int64_t k = 0; k < cols; k += 2)
    for (int r = 0; r < rows.count; ++r) {
      const uint32_t next = k + 1 < cols ? table[rows.data[r][k + 1]] : 0u;
      out[k / 2 * kTile + r] = table[rows.data[r][k]] | next << 16;
    }
  if (k_scale == nullptr) return;
  for (int r = 0; r < rows.count; ++r) {
    const RawMatrix& m = *rows.matrix[r];
    const uint8_t* from = m.scales + (m.first_row + rows.row[r]) / kScaleBlock * m.scale_row_bytes;
    for (int64_t b = 0; b * kScaleBlock < cols; ++b) k_scale[b * kTile + r] = load<float>(from + b * 4);
  }
}

}  // namespace

PackedStorage storage_for(size_t bytes) {
  constexpr size_t kPiece = size_t{32} << 20;
  if (bytes >= kPiece / 2) {
    auto own = std::make_shared<const Buffer>(bytes);
    return {own, own->data()};
  }
  static std::mutex mutex;
  static std::weak_ptr<const Buffer> current;
  static size_t used = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<const Buffer> piece = current.lock();
  if (piece == nullptr || used + bytes > kPiece) {
    piece = std::make_shared<const Buffer>(kPiece);
    current = piece;
    used = 0;
  }
  uint8_t* data = piece->data() + used;
  used += bytes;
  return {std::move(piece), data};
}

std::string_view name_of(Layout layout) {
  return layout == Layout::kTile16 ? "tile16" : layout == Layout::kP64 ? "p64" : "none";
}

int64_t PackedMatrix::tile_bytes() const { return payload_bytes(payload, k_padded); }

size_t packed_bytes(Layout layout, WeightFormat format, int64_t rows, int64_t cols) {
  return layout == Layout::kP64 ? packed_bytes_p64(format, rows, cols) : sizes_of(format, rows, cols).total();
}

PackedMatrix pack(Layout layout, const RawSegments& segments, RowOrder order, ThreadTeam* team) {
  CHECK(layout != Layout::kNone, "pack: no layout");
  return layout == Layout::kP64 ? pack_p64(segments, order, team) : pack_tile16(segments, team);
}

PackedMatrix pack_tile16(const RawSegments& segments, ThreadTeam* team) {
  PackedMatrix p;
  if (segments.empty()) return p;
  p.layout = Layout::kTile16;
  p.format = segments.front().format;
  p.payload = payload_of(p.format);
  p.rows = rows_of(segments);
  p.cols = cols_of(segments);
  p.tiles = round_up(p.rows, kTile) / kTile;
  p.k_padded = padded_k(p.payload, p.cols);
  const Sizes sizes = sizes_of(p.format, p.rows, p.cols);
  PackedStorage place = storage_for(sizes.total());
  p.storage = std::move(place.owner);
  p.size = sizes.total();
  uint8_t* data = place.data;
  uint8_t* scales = data + sizes.payload;
  float* row_scale = reinterpret_cast<float*>(scales + sizes.scales);
  float* k_scale = sizes.k_scale > 0 ? reinterpret_cast<float*>(scales + sizes.scales + sizes.row_scale) : nullptr;
  const int64_t k_blocks = round_up(p.cols, kScaleBlock) / kScaleBlock;
  struct Row {
    const RawMatrix* matrix;
    int64_t row;
  };
  std::vector<Row> all;
  all.reserve(static_cast<size_t>(p.rows));
  for (const RawMatrix& m : segments) {
    if (m.format != p.format || m.cols != p.cols)
      fail(Code::kInternal, fmt::format("{}: must be {} with {} columns like the segment before it, got {} with {}",
                                        m.name, name_of(p.format), p.cols, name_of(m.format), m.cols));
    if (m.format == WeightFormat::kNvfp4 && m.cols % 16 != 0)
      fail(Code::kInternal, fmt::format("{}: nvfp4 columns must be a multiple of 16, got {}", m.name, m.cols));
    for (int64_t row = 0; row < m.rows; ++row) all.push_back({&m, row});
  }
  share_out(team, p.tiles, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      TileRows rows;
      for (int64_t at = tile * kTile; at < std::min((tile + 1) * kTile, p.rows); ++at) {
        const auto& [m, row] = all[static_cast<size_t>(at)];
        rows.matrix[rows.count] = m;
        rows.row[rows.count] = row;
        rows.data[rows.count++] = m->data + row * m->row_bytes;
        row_scale[at] = m->global_scale * (m->row_scale != nullptr ? m->row_scale[row] : 1.f);
      }
      uint8_t* to = data + tile * p.tile_bytes();
      switch (p.format) {
        case WeightFormat::kNvfp4:
          pack_nvfp4(rows, p.cols, to, scales + tile * p.k_padded);
          break;
        case WeightFormat::kF32:
          pack_f32(rows, p.cols, to);
          break;
        case WeightFormat::kBf16:
          pack_bf16(rows, p.cols, to);
          break;
        case WeightFormat::kFp8:
        case WeightFormat::kFp8Block:
          pack_fp8(rows, p.cols, to, k_scale != nullptr ? k_scale + tile * k_blocks * kTile : nullptr);
          break;
      }
    }
  });
  p.data = data;
  p.scales = sizes.scales > 0 ? scales : nullptr;
  p.row_scale = row_scale;
  p.k_scale = k_scale;
  return p;
}

int64_t packed_row(const PackedMatrix& m, int64_t row) {
  return m.layout == Layout::kP64 ? packed_row_p64(m, row) : row;
}

float element(const PackedMatrix& m, int64_t row, int64_t col) {
  CHECK(m.layout != Layout::kNone && row >= 0 && row < m.rows && col >= 0 && col < m.cols,
        fmt::format("element [{}, {}] of {} [{}, {}]", row, col, name_of(m.layout), m.rows, m.cols));
  if (m.layout == Layout::kP64) return element_p64(m, row, col);
  const int64_t tile = row / kTile, r = row % kTile;
  const uint8_t* data = m.data + tile * m.tile_bytes();
  switch (m.payload) {
    case Payload::kNvfp4: {
      const int64_t at = place_nvfp4(r, col);
      const uint8_t code = at % 2 == 0 ? data[at / 2] & 15 : data[at / 2] >> 4;
      return kE2M1[code] * e4m3_to_float(m.scales[tile * m.k_padded + col / 16 * kTile + r]);
    }
    case Payload::kF32:
      return reinterpret_cast<const float*>(data)[place_f32(r, col)];
    case Payload::kBf16: {
      const float w = bf16_to_float(reinterpret_cast<const uint16_t*>(data)[place_bf16(r, col)]);
      if (m.k_scale == nullptr) return w;
      const int64_t k_blocks = round_up(m.cols, kScaleBlock) / kScaleBlock;
      return w * m.k_scale[(tile * k_blocks + col / kScaleBlock) * kTile + r];
    }
    case Payload::kFp8:
      break;  // tile16 widens it
  }
  fail(Code::kInternal, "packed: no such payload");
}

PackedMatrix place_matrix(const PackedMatrix& m, Place& place) {
  if (m.empty() || place.kind() == DeviceKind::kCpu) return m;
  PackedMatrix out = m;
  auto* data = static_cast<uint8_t*>(place.take(m.size));
  place.copy_in(data, m.data, m.size);
  const auto moved = [&](auto* p) {
    return p == nullptr ? nullptr
                        : reinterpret_cast<decltype(p)>(data + (reinterpret_cast<const uint8_t*>(p) - m.data));
  };
  out.data = data;
  out.scales = moved(m.scales);
  out.row_scale = moved(m.row_scale);
  out.k_scale = moved(m.k_scale);
  out.storage = nullptr;
  return out;
}

}  // namespace mettle
