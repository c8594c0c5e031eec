#include "models/weight_reader.h"

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/requantise.h"
#include "models/weight_listener.h"

namespace mettle {

RawMatrix WeightReader::matrix(const std::string& module, int64_t rows, int64_t cols) {
  if (!planning()) return source_.matrix(module, rows, cols, team_);
  if (auto* listener = dynamic_cast<WeightListener*>(&source_)) listener->wants_matrix(module, rows, cols);
  RawMatrix m;
  m.format = source_.format_of(module);
  m.rows = rows;
  m.cols = cols;
  m.name = module;
  return m;
}

RawMatrix WeightReader::dense(const std::string& module, int64_t rows, int64_t cols) {
  RawMatrix m = matrix(module, rows, cols);
  if (dense_ != DenseDtype::kFp8 || m.format != WeightFormat::kBf16) return m;
  requantised_.insert(module);
  if (!planning()) return requantised_fp8(m, memory_, team_);
  m.format = WeightFormat::kFp8;
  return m;
}

std::vector<float> WeightReader::vector(const std::string& name, const Shape& shape) {
  if (!planning()) return source_.vector(name, shape);
  if (auto* listener = dynamic_cast<WeightListener*>(&source_)) listener->wants_vector(name, shape);
  return std::vector<float>(static_cast<size_t>(shape.elements()));
}

int64_t column_unit(WeightFormat format) {
  return format == WeightFormat::kNvfp4 ? 16 : format == WeightFormat::kFp8Block ? 128 : 1;
}

RawMatrix keep_rows(const RawMatrix& matrix, Range keep) {
  if (matrix.data != nullptr) return matrix.slice_rows(keep.begin, keep.end);
  RawMatrix m = matrix;
  m.rows = keep.size();
  return m;
}

RawMatrix keep_cols(const RawMatrix& matrix, Range keep) {
  const int64_t unit = column_unit(matrix.format);
  if (keep.begin % unit != 0 || (keep.end % unit != 0 && keep.end != matrix.cols))
    fail(Code::kUnsupported, fmt::format("{}: {} can be cut every {} columns, a rank would keep [{}, {}) of {}",
                                         matrix.name, name_of(matrix.format), unit, keep.begin, keep.end, matrix.cols));
  if (matrix.data != nullptr) return matrix.slice_cols(keep.begin, keep.end);
  RawMatrix m = matrix;
  m.cols = keep.size();
  return m;
}

WeightFormat format_of(const RawSegments& segments) {
  CHECK(!segments.empty(), "format of no segments");
  for (const RawMatrix& m : segments)
    if (m.format != segments.front().format)
      fail(Code::kUnsupported,
           fmt::format("{}: must have the format of {}, since one product reads both: {} and {}", m.name,
                       segments.front().name, name_of(m.format), name_of(segments.front().format)));
  return segments.front().format;
}

}  // namespace mettle
