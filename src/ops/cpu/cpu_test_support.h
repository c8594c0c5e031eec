// What the tests of the CPU backends share: random weights of every format, rows in guarded memory, sums in double.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/thread_team.h"
#include "ops/backend.h"
#include "tensor/buffer.h"
#include "tensor/tensor_view.h"

namespace mettle::cpu_test {

inline std::mt19937& random() {
  static std::mt19937 engine(7);
  return engine;
}
inline float normal() { return std::normal_distribution<float>(0.f, 1.f)(random()); }

// A weight in memory as a checkpoint has it.
struct RandomMatrix {
  RawMatrix raw;
  std::vector<uint8_t> data, scales;
  std::vector<float> row_scale;

  RandomMatrix(WeightFormat format, int64_t rows, int64_t cols) {
    raw.format = format;
    raw.rows = rows;
    raw.cols = cols;
    raw.name = "random";
    const auto bytes = [](size_t n, uint8_t mask) {
      std::vector<uint8_t> v(n);
      for (uint8_t& b : v) b = static_cast<uint8_t>(random()()) & mask;
      return v;
    };
    const auto n = static_cast<size_t>(rows * cols);
    switch (format) {
      case WeightFormat::kNvfp4:
        data = bytes(n / 2, 0xFF);
        scales = bytes(n / 16, 0x3F);  // subnormals included
        raw.row_bytes = cols / 2;
        raw.scale_row_bytes = cols / 16;
        raw.global_scale = 0.37f;
        break;
      case WeightFormat::kFp8:
        data = bytes(n, 0xBF);
        raw.row_bytes = cols;
        for (int64_t r = 0; r < rows; ++r) row_scale.push_back(0.1f + std::abs(normal()));
        raw.row_scale = row_scale.data();
        break;
      case WeightFormat::kFp8Block: {
        data = bytes(n, 0xBF);
        raw.row_bytes = cols;
        const int64_t blocks = (cols + 127) / 128;
        std::vector<float> s(static_cast<size_t>((rows + 127) / 128 * blocks));
        for (float& f : s) f = 0.1f + std::abs(normal());
        scales.resize(s.size() * 4);
        std::memcpy(scales.data(), s.data(), scales.size());
        raw.scale_row_bytes = blocks * 4;
        break;
      }
      case WeightFormat::kBf16:
        data.resize(2 * n);
        for (size_t i = 0; i < n; ++i) reinterpret_cast<uint16_t*>(data.data())[i] = float_to_bf16(normal());
        raw.row_bytes = cols * 2;
        break;
      case WeightFormat::kF32:
        data.resize(4 * n);
        for (size_t i = 0; i < n; ++i) reinterpret_cast<float*>(data.data())[i] = normal();
        raw.row_bytes = cols * 4;
        break;
    }
    raw.data = data.data();
    raw.scales = scales.empty() ? nullptr : scales.data();
  }
  RandomMatrix(const RandomMatrix&) = delete;
  RandomMatrix(RandomMatrix&&) = default;  // vectors keep their memory
};

// Values in memory with a guard band on both sides.
class Guarded {
 public:
  Guarded(DType dtype, Shape shape) : view_{nullptr, dtype, shape}, buffer_(view_.bytes() + 2 * kBand) {
    std::memset(buffer_.data(), 0xA5, buffer_.size());
    view_.data = buffer_.data() + kBand;
  }
  const TensorView& view() const { return view_; }
  void expect_bands() const {
    for (size_t i = 0; i < kBand; ++i) {
      ASSERT_EQ(buffer_.data()[i], 0xA5) << "before the output";
      ASSERT_EQ(buffer_.data()[kBand + view_.bytes() + i], 0xA5) << "behind the output";
    }
  }
  std::vector<uint8_t> bytes() const { return {view_.as<uint8_t>(), view_.as<uint8_t>() + view_.bytes()}; }

 private:
  static constexpr size_t kBand = 256;
  TensorView view_;
  Buffer buffer_;
};

inline double value(const TensorView& x, int64_t i) {
  return x.dtype == DType::kF32 ? x.as<float>()[i] : bf16_to_float(x.as<uint16_t>()[i]);
}
inline void set(const TensorView& x, int64_t i, float v) {
  if (x.dtype == DType::kF32) {
    x.as<float>()[i] = v;
  } else if (x.dtype == DType::kE4M3) {
    x.as<uint8_t>()[i] = float_to_e4m3(v);
  } else {
    x.as<uint16_t>()[i] = float_to_bf16(v);
  }
}
inline void fill(const TensorView& x) {
  for (int64_t i = 0; i < x.shape.elements(); ++i) set(x, i, normal());
}

// Sum of products with the bound that any order in float32 keeps (ten sigmas: docs/proofs.md).
struct Sum {
  double value = 0, bound = 0;
};
template <class X>
Sum row_product(const RawMatrix& w, int64_t row, const X& x) {
  double sum = 0, squares = 0, peak = 0;
  for (int64_t k = 0; k < w.cols; ++k) {
    const double term = x(k) * w.at(row, k);
    sum += term;
    squares += term * term;
    peak = std::max(peak, std::abs(sum));
  }
  const double n = static_cast<double>(w.cols);
  const double sigma = std::ldexp(std::sqrt(n) / 2 + n / 128 + 2, -24) * std::max(std::sqrt(squares), peak);
  return {sum, 10 * sigma + 1e-37};
}

inline Workspace workspace_of(Buffer& buffer) { return {buffer.data(), buffer.size()}; }

inline constexpr WeightFormat kFormats[] = {WeightFormat::kNvfp4, WeightFormat::kFp8, WeightFormat::kFp8Block,
                                            WeightFormat::kBf16, WeightFormat::kF32};

}  // namespace mettle::cpu_test
