#include "ops/case_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace mettle {
namespace {

constexpr int64_t kScaleBlock = 128;
constexpr size_t kBehind = 1024;  // bytes of NaN behind every input: who reads on meets them

// One segment with its memory: payload, then scales, then row scales.
struct Segment {
  RawMatrix raw;
  std::shared_ptr<std::vector<uint8_t>> memory;
  uint8_t* data = nullptr;
  uint8_t* scales = nullptr;
  float* row_scale = nullptr;
};

Segment make_segment(WeightFormat format, int64_t rows, int64_t cols, bool per_channel) {
  Segment s;
  RawMatrix& m = s.raw;
  m.format = format;
  m.rows = rows;
  m.cols = cols;
  m.name = "case";
  size_t scale_bytes = 0;
  switch (format) {
    case WeightFormat::kF32:
      m.row_bytes = cols * 4;
      break;
    case WeightFormat::kBf16:
      m.row_bytes = cols * 2;
      break;
    case WeightFormat::kFp8:
      m.row_bytes = cols;
      break;
    case WeightFormat::kFp8Block:
      m.row_bytes = cols;
      m.scale_row_bytes = (cols + kScaleBlock - 1) / kScaleBlock * 4;
      scale_bytes = static_cast<size_t>((rows + kScaleBlock - 1) / kScaleBlock * m.scale_row_bytes);
      break;
    case WeightFormat::kNvfp4:
      m.row_bytes = cols / 2;
      m.scale_row_bytes = cols / 16;
      scale_bytes = static_cast<size_t>(rows * m.scale_row_bytes);
      break;
  }
  const size_t payload = (static_cast<size_t>(rows * m.row_bytes) + 15) & ~size_t{15};
  const size_t with_scales = (payload + scale_bytes + 15) & ~size_t{15};
  s.memory = std::make_shared<std::vector<uint8_t>>(with_scales + (per_channel ? static_cast<size_t>(rows) * 4 : 0));
  s.data = s.memory->data();
  s.scales = s.data + payload;
  m.data = s.data;
  if (scale_bytes > 0) m.scales = s.scales;
  if (per_channel) {
    s.row_scale = reinterpret_cast<float*>(s.data + with_scales);
    m.row_scale = s.row_scale;
  }
  return s;
}

template <class T>
void store(uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

void set_code(Segment& s, int64_t row, int64_t col, uint8_t code) {
  uint8_t& byte = s.data[row * s.raw.row_bytes + col / 2];
  byte = static_cast<uint8_t>(col % 2 == 0 ? (byte & 0xF0) | code : (byte & 0x0F) | code << 4);
}

// Scale that maps the largest of `values` to the largest code, the way a quantizer does it.
void quantize_nvfp4_row(Segment& s, int64_t row, const std::vector<double>& values, CaseFill fill, CaseRandom& random) {
  const double g = s.raw.global_scale;
  for (int64_t b = 0; b < s.raw.cols / 16; ++b) {
    double most = 0;
    for (int64_t k = 0; k < 16; ++k) most = std::max(most, std::fabs(values[static_cast<size_t>(b * 16 + k)]));
    uint8_t code = float_to_e4m3(static_cast<float>(most / 6 / g));
    const double scale = e4m3_to_float(code) * g;
    for (int64_t k = 0; k < 16; ++k) {
      const double v = values[static_cast<size_t>(b * 16 + k)];
      set_code(s, row, b * 16 + k, float_to_e2m1(scale > 0 ? static_cast<float>(v / scale) : 0.f));
    }
    if (fill == CaseFill::kWideScales)
      code = float_to_e4m3(e4m3_to_float(code) * static_cast<float>(std::ldexp(1.0, -random.below(15))));
    s.scales[row * s.raw.scale_row_bytes + b] = code;
  }
}

void fill_row(Segment& s, int64_t row, const std::vector<double>& values, CaseFill fill, CaseRandom& random) {
  RawMatrix& m = s.raw;
  uint8_t* out = s.data + row * m.row_bytes;
  switch (m.format) {
    case WeightFormat::kF32:
      for (int64_t k = 0; k < m.cols; ++k) store(out + 4 * k, static_cast<float>(values[static_cast<size_t>(k)]));
      return;
    case WeightFormat::kBf16:
      for (int64_t k = 0; k < m.cols; ++k)
        store(out + 2 * k, float_to_bf16(static_cast<float>(values[static_cast<size_t>(k)])));
      return;
    case WeightFormat::kFp8: {
      const double scale = static_cast<double>(m.global_scale) * (s.row_scale != nullptr ? s.row_scale[row] : 1.f);
      for (int64_t k = 0; k < m.cols; ++k)
        out[k] = float_to_e4m3(static_cast<float>(values[static_cast<size_t>(k)] / scale));
      return;
    }
    case WeightFormat::kFp8Block:
      for (int64_t k = 0; k < m.cols; ++k) {
        float scale = 0;
        std::memcpy(&scale, s.scales + row / kScaleBlock * m.scale_row_bytes + k / kScaleBlock * 4, sizeof scale);
        out[k] = float_to_e4m3(static_cast<float>(values[static_cast<size_t>(k)] / scale));
      }
      return;
    case WeightFormat::kNvfp4:
      quantize_nvfp4_row(s, row, values, fill, random);
      return;
  }
}

Segment random_segment(WeightFormat format, int64_t rows, int64_t cols, CaseFill fill, CaseRandom& random,
                       double gain) {
  const double spread = gain / std::sqrt(static_cast<double>(cols));
  Segment s = make_segment(format, rows, cols, format == WeightFormat::kFp8);
  RawMatrix& m = s.raw;
  const auto jitter = [&] { return static_cast<float>(std::exp(0.25 * random.normal())); };
  const auto largest = static_cast<float>(4 * spread);  // of a bell-shaped row
  if (format == WeightFormat::kNvfp4) m.global_scale = largest * jitter() / (kE2M1Max * kE4M3Max) * 2;
  if (s.row_scale != nullptr)
    for (int64_t r = 0; r < rows; ++r) s.row_scale[r] = largest * jitter() / kE4M3Max;
  if (format == WeightFormat::kFp8Block)
    for (size_t i = 0, n = static_cast<size_t>((rows + kScaleBlock - 1) / kScaleBlock * m.scale_row_bytes) / 4; i < n;
         ++i)
      store(s.scales + 4 * i, largest * jitter() / kE4M3Max * 2);
  std::vector<double> values(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    const double row_spread = spread * jitter();
    for (double& v : values) {
      v = random.normal() * row_spread;
      if (fill == CaseFill::kWideScales && format != WeightFormat::kNvfp4) v = std::ldexp(v, -random.below(12));
    }
    fill_row(s, r, values, fill, random);
  }
  return s;
}

// Integers up to 6 (nvfp4: halves up to 6) times scales with every mantissa: multiples of 1/16 below 32.
Segment exact_segment(WeightFormat format, int64_t rows, int64_t cols, CaseRandom& random) {
  Segment s = make_segment(format, rows, cols, false);
  RawMatrix& m = s.raw;
  if (format == WeightFormat::kNvfp4) {
    m.global_scale = 0x1p-4f;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < cols; ++k) set_code(s, r, k, static_cast<uint8_t>(random.below(16)));
      for (int64_t b = 0; b < cols / 16; ++b)
        s.scales[r * m.scale_row_bytes + b] =
            float_to_e4m3(static_cast<float>(std::ldexp(8 + random.below(8), -2 - random.below(2))));
    }
    return s;
  }
  if (format == WeightFormat::kFp8) m.global_scale = 0x1p-3f;
  if (format == WeightFormat::kFp8Block)
    for (size_t i = 0, n = static_cast<size_t>((rows + kScaleBlock - 1) / kScaleBlock * m.scale_row_bytes) / 4; i < n;
         ++i)
      store(s.scales + 4 * i, static_cast<float>(std::ldexp(1.0, -random.below(3))));
  std::vector<double> values(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < cols; ++k) {
      double v = random.below(17) - 8;  // all exact in every format after its scale
      if (format == WeightFormat::kFp8) v *= m.global_scale;
      if (format == WeightFormat::kFp8Block) {
        float scale = 0;
        std::memcpy(&scale, s.scales + r / kScaleBlock * m.scale_row_bytes + k / kScaleBlock * 4, sizeof scale);
        v *= scale;
      }
      values[static_cast<size_t>(k)] = v;
    }
    fill_row(s, r, values, CaseFill::kExact, random);
  }
  return s;
}

}  // namespace

CaseWeight case_weight(WeightFormat format, const std::vector<int64_t>& heights, int64_t cols, CaseFill fill,
                       CaseRandom& random, double gain) {
  CaseWeight w;
  for (const int64_t rows : heights) {
    if (rows == 0) continue;
    Segment s = fill == CaseFill::kExact ? exact_segment(format, rows, cols, random)
                                         : random_segment(format, rows, cols, fill, random, gain);
    w.raw.push_back(s.raw);
    w.memory.push_back(s.memory);
  }
  return w;
}

CaseWeight case_weight_of(WeightFormat format, int64_t rows, int64_t cols,
                          const std::function<double(int64_t row, int64_t col)>& value) {
  Segment s = make_segment(format, rows, cols, false);
  if (format == WeightFormat::kFp8Block)
    for (size_t i = 0, n = static_cast<size_t>((rows + kScaleBlock - 1) / kScaleBlock * s.raw.scale_row_bytes) / 4;
         i < n; ++i)
      store(s.scales + 4 * i, 1.f);
  if (format == WeightFormat::kNvfp4) std::fill_n(s.scales, rows * s.raw.scale_row_bytes, float_to_e4m3(1.f));
  std::vector<double> values(static_cast<size_t>(cols));
  CaseRandom unused(0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < cols; ++k) values[static_cast<size_t>(k)] = value(r, k);
    if (format != WeightFormat::kNvfp4) {
      fill_row(s, r, values, CaseFill::kExact, unused);
      continue;
    }
    for (int64_t k = 0; k < cols; ++k)
      set_code(s, r, k, float_to_e2m1(static_cast<float>(values[static_cast<size_t>(k)])));
  }
  return {{s.raw}, {s.memory}};
}

void case_set(CaseWeight& weight, int64_t row, int64_t col, double value) {
  size_t i = 0;
  while (row >= weight.raw[i].rows) row -= weight.raw[i++].rows;
  const RawMatrix& m = weight.raw[i];
  Segment s{m, weight.memory[i], const_cast<uint8_t*>(m.data), const_cast<uint8_t*>(m.scales), nullptr};
  uint8_t* out = s.data + row * m.row_bytes;
  switch (m.format) {
    case WeightFormat::kF32:
      return store(out + 4 * col, static_cast<float>(value));
    case WeightFormat::kBf16:
      return store(out + 2 * col, float_to_bf16(static_cast<float>(value)));
    case WeightFormat::kFp8:
      out[col] = float_to_e4m3(static_cast<float>(value));
      return;
    case WeightFormat::kFp8Block: {
      float scale = 0;
      std::memcpy(&scale, s.scales + row / kScaleBlock * m.scale_row_bytes + col / kScaleBlock * 4, sizeof scale);
      out[col] = float_to_e4m3(static_cast<float>(value / scale));
      return;
    }
    case WeightFormat::kNvfp4:
      if (value != 0) s.scales[row * m.scale_row_bytes + col / 16] = float_to_e4m3(1.f);
      set_code(s, row, col, float_to_e2m1(static_cast<float>(value)));
      return;
  }
}

CaseInput::CaseInput(int64_t rows, int64_t cols, DType dtype)
    : dtype_(dtype), shape_({rows, cols}), data_(static_cast<size_t>(rows * cols) * size_of(dtype) + kBehind) {
  std::memset(data_.data() + data_.size() - kBehind, 0xFF, kBehind);
}

float CaseInput::get(int64_t row, int64_t col) const {
  const auto at = static_cast<size_t>(row * cols() + col);
  if (dtype_ == DType::kE4M3) return e4m3_to_float(data_.as<uint8_t>()[at]);
  return dtype_ == DType::kBF16 ? bf16_to_float(data_.as<uint16_t>()[at]) : data_.as<float>()[at];
}

void CaseInput::set(int64_t row, int64_t col, double value) {
  const auto at = static_cast<size_t>(row * cols() + col);
  if (dtype_ == DType::kE4M3)
    data_.as<uint8_t>()[at] = float_to_e4m3(static_cast<float>(value));
  else if (dtype_ == DType::kBF16)
    data_.as<uint16_t>()[at] = float_to_bf16(static_cast<float>(value));
  else
    data_.as<float>()[at] = static_cast<float>(value);
}

void CaseInput::fill_normal(CaseRandom& random, double scale) {
  for (int64_t r = 0; r < rows(); ++r)
    for (int64_t c = 0; c < cols(); ++c) set(r, c, random.normal() * scale);
}

void CaseInput::fill_row_nan(int64_t row) {
  for (int64_t c = 0; c < cols(); ++c) set(row, c, std::nan(""));
}

CaseInput CaseInput::copy() const {
  CaseInput out(rows(), cols(), dtype_);
  std::memcpy(out.data_.data(), data_.data(), data_.size());
  return out;
}

}  // namespace mettle
