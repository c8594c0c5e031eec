#include "tensor/weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "tensor/dtype.h"

namespace mettle {
namespace {

constexpr int64_t kBlock = 128;

int64_t byte_of(WeightFormat format, int64_t col) {
  switch (format) {
    case WeightFormat::kF32:
      return col * 4;
    case WeightFormat::kBf16:
      return col * 2;
    case WeightFormat::kFp8:
    case WeightFormat::kFp8Block:
      return col;
    case WeightFormat::kNvfp4:
      return col / 2;
  }
  fail(Code::kInternal, "weight: no such format");
}

template <class T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

}  // namespace

std::string_view name_of(WeightFormat format) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "fp8", "fp8_block", "nvfp4"};
  return kNames[static_cast<size_t>(format)];
}

RawMatrix RawMatrix::slice_rows(int64_t begin, int64_t end) const {
  CHECK(0 <= begin && begin <= end && end <= rows, fmt::format("{}: rows [{}, {}) of {}", name, begin, end, rows));
  RawMatrix m = *this;
  m.rows = end - begin;
  m.data = data + begin * row_bytes;
  if (format == WeightFormat::kNvfp4) m.scales = scales + begin * scale_row_bytes;
  m.first_row = first_row + begin;
  if (row_scale != nullptr) m.row_scale = row_scale + begin;
  return m;
}

RawMatrix RawMatrix::slice_cols(int64_t begin, int64_t end) const {
  const int64_t step = format == WeightFormat::kNvfp4 ? 16 : format == WeightFormat::kFp8Block ? kBlock : 1;
  CHECK(0 <= begin && begin <= end && end <= cols && begin % step == 0 && (end % step == 0 || end == cols),
        fmt::format("{}: columns [{}, {}) of {} must be multiples of {}", name, begin, end, cols, step));
  RawMatrix m = *this;
  m.cols = end - begin;
  m.data = data + byte_of(format, begin);
  if (format == WeightFormat::kNvfp4) m.scales = scales + begin / 16;
  if (format == WeightFormat::kFp8Block) m.scales = scales + begin / kBlock * 4;
  return m;
}

double RawMatrix::at(int64_t row, int64_t col) const {
  const uint8_t* p = data + row * row_bytes + byte_of(format, col);
  const double global = static_cast<double>(global_scale) * (row_scale != nullptr ? row_scale[row] : 1.f);
  switch (format) {
    case WeightFormat::kF32:
      return load<float>(p);
    case WeightFormat::kBf16:
      return bf16_to_float(load<uint16_t>(p));
    case WeightFormat::kFp8:
      return e4m3_to_float(*p) * global;
    case WeightFormat::kFp8Block:
      return static_cast<double>(e4m3_to_float(*p)) *
             load<float>(scales + (first_row + row) / kBlock * scale_row_bytes + col / kBlock * 4);
    case WeightFormat::kNvfp4: {
      const uint8_t code = col % 2 == 0 ? *p & 15 : *p >> 4;
      return static_cast<double>(kE2M1[code]) * e4m3_to_float(scales[row * scale_row_bytes + col / 16]) * global;
    }
  }
  fail(Code::kInternal, "weight: no such format");
}

void RawMatrix::read_row(int64_t row, double* out) const {
  const uint8_t* p = data + row * row_bytes;
  const double global = static_cast<double>(global_scale) * (row_scale != nullptr ? row_scale[row] : 1.f);
  switch (format) {
    case WeightFormat::kF32:
      for (int64_t k = 0; k < cols; ++k) out[k] = load<float>(p + k * 4);
      return;
    case WeightFormat::kBf16:
      for (int64_t k = 0; k < cols; ++k) out[k] = bf16_to_float(load<uint16_t>(p + k * 2));
      return;
    case WeightFormat::kFp8:
      for (int64_t k = 0; k < cols; ++k) out[k] = e4m3_to_float(p[k]) * global;
      return;
    case WeightFormat::kFp8Block: {
      const uint8_t* scale = scales + (first_row + row) / kBlock * scale_row_bytes;
      for (int64_t k = 0; k < cols; ++k)
        out[k] = static_cast<double>(e4m3_to_float(p[k])) * load<float>(scale + k / kBlock * 4);
      return;
    }
    case WeightFormat::kNvfp4:
      for (int64_t begin = 0; begin < cols; begin += 16) {
        const double scale = e4m3_to_float(scales[row * scale_row_bytes + begin / 16]);
        for (int64_t k = begin; k < std::min(begin + 16, cols); ++k) {
          const uint8_t code = k % 2 == 0 ? p[k / 2] & 15 : p[k / 2] >> 4;
          out[k] = static_cast<double>(kE2M1[code]) * scale * global;
        }
      }
      return;
  }
  fail(Code::kInternal, "weight: no such format");
}

int64_t rows_of(const RawSegments& segments) {
  int64_t rows = 0;
  for (const RawMatrix& m : segments) rows += m.rows;
  return rows;
}

int64_t cols_of(const RawSegments& segments) { return segments.empty() ? 0 : segments.front().cols; }

}  // namespace mettle
