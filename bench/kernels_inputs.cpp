#include "kernels_inputs.h"

#include <cstring>

namespace mettle::bench {

std::mt19937& random() {
  static std::mt19937 engine(11);
  return engine;
}

PackedMatrix random_matrix(WeightFormat format, int64_t rows, int64_t cols) {
  std::vector<uint8_t> data(static_cast<size_t>(rows * cols) * 4), scales(static_cast<size_t>(rows * cols / 16), 0x30);
  for (size_t i = 0; i + 4 <= data.size(); i += 4) {
    const uint32_t v = format == WeightFormat::kNvfp4 ? static_cast<uint32_t>(i) * 2654435761u : 0x3C003C00u;
    std::memcpy(&data[i], &v, 4);
  }
  RawMatrix raw{.format = format, .rows = rows, .cols = cols, .data = data.data(), .scales = scales.data()};
  raw.row_bytes = format == WeightFormat::kNvfp4 ? cols / 2 : format == WeightFormat::kF32 ? cols * 4 : cols * 2;
  raw.scale_row_bytes = cols / 16;
  raw.global_scale = 0.01f;
  return pack_tile16({raw});
}

Rows::Rows(DType dtype, int64_t rows, int64_t cols)
    : memory(static_cast<size_t>(rows * cols) * 4), view{memory.data(), dtype, {rows, cols}} {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < rows * cols; ++i) {
    if (dtype == DType::kBF16)
      view.as<uint16_t>()[i] = float_to_bf16(normal(random()));
    else
      view.as<float>()[i] = 0;
  }
}

}  // namespace mettle::bench
