#include "ops/packed.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
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

void pack_row(const RawMatrix& m, int64_t row, int64_t r, uint8_t* tile, uint8_t* scales, float* k_scale) {
  const uint8_t* src = m.data + row * m.row_bytes;
  switch (m.format) {
    case WeightFormat::kNvfp4: {
      for (int64_t k = 0; k < m.cols; ++k) {
        const uint8_t code = k % 2 == 0 ? src[k / 2] & 15 : src[k / 2] >> 4;
        const int64_t at = place_nvfp4(r, k);
        tile[at / 2] |= static_cast<uint8_t>(at % 2 == 0 ? code : code << 4);
      }
      const uint8_t* s = m.scales + row * m.scale_row_bytes;
      for (int64_t g = 0; g < m.cols / 16; ++g) scales[g * kTile + r] = s[g];
      return;
    }
    case WeightFormat::kF32:
      for (int64_t k = 0; k < m.cols; ++k) reinterpret_cast<float*>(tile)[place_f32(r, k)] = load<float>(src + 4 * k);
      return;
    case WeightFormat::kBf16:
      for (int64_t k = 0; k < m.cols; ++k)
        reinterpret_cast<uint16_t*>(tile)[place_bf16(r, k)] = load<uint16_t>(src + 2 * k);
      return;
    case WeightFormat::kFp8:
    case WeightFormat::kFp8Block:
      for (int64_t k = 0; k < m.cols; ++k)
        reinterpret_cast<uint16_t*>(tile)[place_bf16(r, k)] = float_to_bf16(e4m3_to_float(src[k]));
      if (k_scale != nullptr)
        for (int64_t b = 0; b * kScaleBlock < m.cols; ++b)
          k_scale[b * kTile + r] =
              load<float>(m.scales + (m.first_row + row) / kScaleBlock * m.scale_row_bytes + b * 4);
      return;
  }
}

}  // namespace

std::string_view name_of(Layout layout) { return layout == Layout::kTile16 ? "tile16" : "none"; }

int64_t PackedMatrix::tile_bytes() const { return payload_bytes(payload, k_padded); }

size_t packed_bytes_tile16(WeightFormat format, int64_t rows, int64_t cols) {
  return sizes_of(format, rows, cols).total();
}

PackedMatrix pack_tile16(const RawSegments& segments) {
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
  p.storage = Buffer(sizes.total());
  uint8_t* data = p.storage.data();
  uint8_t* scales = data + sizes.payload;
  float* row_scale = reinterpret_cast<float*>(scales + sizes.scales);
  float* k_scale = sizes.k_scale > 0 ? reinterpret_cast<float*>(scales + sizes.scales + sizes.row_scale) : nullptr;
  const int64_t k_blocks = round_up(p.cols, kScaleBlock) / kScaleBlock;
  int64_t out = 0;
  for (const RawMatrix& m : segments) {
    if (m.format != p.format || m.cols != p.cols)
      fail(Code::kInternal, fmt::format("{}: must be {} with {} columns like the segment before it, got {} with {}",
                                        m.name, name_of(p.format), p.cols, name_of(m.format), m.cols));
    if (m.format == WeightFormat::kNvfp4 && m.cols % 16 != 0)
      fail(Code::kInternal, fmt::format("{}: nvfp4 columns must be a multiple of 16, got {}", m.name, m.cols));
    for (int64_t row = 0; row < m.rows; ++row, ++out) {
      const int64_t tile = out / kTile, r = out % kTile;
      pack_row(m, row, r, data + tile * p.tile_bytes(), scales + tile * p.k_padded,
               k_scale != nullptr ? k_scale + tile * k_blocks * kTile : nullptr);
      row_scale[out] = m.global_scale * (m.row_scale != nullptr ? m.row_scale[row] : 1.f);
    }
  }
  p.data = data;
  p.scales = sizes.scales > 0 ? scales : nullptr;
  p.row_scale = row_scale;
  p.k_scale = k_scale;
  return p;
}

float element(const PackedMatrix& m, int64_t row, int64_t col) {
  CHECK(m.layout == Layout::kTile16 && row >= 0 && row < m.rows && col >= 0 && col < m.cols,
        fmt::format("element [{}, {}] of {} [{}, {}]", row, col, name_of(m.layout), m.rows, m.cols));
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
  }
  fail(Code::kInternal, "packed: no such payload");
}

}  // namespace mettle
