// Packed weights read wrongly: a copy whose bytes are changed says what a kernel would see that decodes them so.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/packed.h"
#include "tensor/dtype.h"

namespace mettle::mutants {

enum class Misread {
  kNone,
  kNibblesSwapped,
  kScaleOfNeighbourRow,
  kScaleOfNextGroup,
  kE5m2,
  kSubnormalScalesFlushed,
  kScalesAllOne,
  kLastGroupZero,
  kOneSign,
  kOneScaleCode,
  kScale2Forgotten,
  kScale2Twice,
  kScale2OfFirstSegment,
  kNegativeZero,
};

// A view of `m` as `how` reads it, for tile16 matrices; keeps its own memory. Other payloads than nvfp4 have no scales
// and nibbles: there only the row scale, the last columns and one sign can be misread.
class Altered {
 public:
  Altered(const PackedMatrix& m, Misread how) : view_(m) {
    if (m.empty()) return;
    data_.assign(m.data, m.data + m.tiles * m.tile_bytes());
    row_scale_.assign(m.row_scale, m.row_scale + m.tiles * 16);
    if (m.payload == Payload::kNvfp4) scales_.assign(m.scales, m.scales + m.tiles * m.k_padded);
    change(how);
    view_.data = data_.data();
    view_.row_scale = row_scale_.data();
    if (!scales_.empty()) view_.scales = scales_.data();
  }
  const PackedMatrix& view() const { return view_; }

 private:
  static float e5m2(uint8_t code) {
    const int exponent = code >> 2 & 31, mantissa = code & 3;
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -16)
                                          : std::ldexp(static_cast<float>(4 + mantissa), exponent - 17);
    return (code & 0x80) != 0 ? -magnitude : magnitude;
  }
  void change(Misread how) {
    const auto groups = static_cast<size_t>(view_.k_padded / 16);
    switch (how) {
      case Misread::kNibblesSwapped:
        for (size_t i = 0; i + 4 <= data_.size() && !scales_.empty(); i += 4) {
          uint32_t w;
          std::memcpy(&w, &data_[i], 4);
          w = w >> 16 | w << 16;
          std::memcpy(&data_[i], &w, 4);
        }
        return;
      case Misread::kScaleOfNeighbourRow:
        for (size_t i = 0; i + 1 < scales_.size(); i += 16) std::swap(scales_[i + 4], scales_[i + 5]);
        return;
      case Misread::kScaleOfNextGroup:
        for (size_t tile = 0; tile < scales_.size(); tile += groups * 16)
          for (size_t g = 0; g + 2 < groups; g += 2)
            std::swap(scales_[tile + g * 16 + 3], scales_[tile + (g + 1) * 16 + 3]);
        return;
      case Misread::kE5m2:
        for (uint8_t& s : scales_) s = float_to_e4m3(e5m2(s));
        return;
      case Misread::kSubnormalScalesFlushed:
        for (uint8_t& s : scales_)
          if ((s & 0x78) == 0) s = 0;
        return;
      case Misread::kScalesAllOne:
        for (uint8_t& s : scales_) s = float_to_e4m3(1);
        return;
      case Misread::kLastGroupZero:
        for (int64_t tile = 1; tile <= view_.tiles; ++tile) {
          const size_t end = static_cast<size_t>(tile) * static_cast<size_t>(view_.tile_bytes());
          std::fill(data_.begin() + static_cast<ptrdiff_t>(end) - 128, data_.begin() + static_cast<ptrdiff_t>(end), 0);
        }
        return;
      case Misread::kOneSign:
        // A code that is not zero, somewhere in the middle.
        for (size_t i = data_.size() / 2; i < data_.size(); ++i)
          if (scales_.empty() ? i % 2 == 1 : (data_[i] & 7) != 0) {
            data_[i] ^= scales_.empty() ? 0x80 : 8;
            return;
          }
        return;
      case Misread::kOneScaleCode:
        if (!scales_.empty()) scales_[scales_.size() / 2 + 1] ^= 1;
        return;
      case Misread::kScale2Forgotten:
        row_scale_.assign(row_scale_.size(), 1.f);
        return;
      case Misread::kScale2Twice:
        for (float& s : row_scale_) s *= s;
        return;
      case Misread::kScale2OfFirstSegment:
        row_scale_.assign(row_scale_.size(), row_scale_.front());
        return;
      case Misread::kNegativeZero:  // code 8 taken for -8
        for (uint8_t& b : data_)
          if ((b & 15) == 8 && !scales_.empty()) b = static_cast<uint8_t>(b | 15);
        return;
      case Misread::kNone:
        return;
    }
  }

  PackedMatrix view_;
  std::vector<uint8_t> data_, scales_;
  std::vector<float> row_scale_;
};

}  // namespace mettle::mutants
