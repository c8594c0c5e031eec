#include "models/block.h"

#include <fmt/format.h>

#include <numeric>

#include "ops/packed.h"

namespace mettle {

void count_bytes(WeightBytes& bytes, Layout layout, const RawSegments& segments) {
  if (segments.empty()) return;
  const WeightFormat format = format_of(segments);
  bytes.by_format[static_cast<size_t>(format)] +=
      static_cast<int64_t>(packed_bytes(layout, format, rows_of(segments), cols_of(segments)));
}

void count_bytes(WeightBytes& bytes, const std::vector<float>& values) {
  bytes.by_format[static_cast<size_t>(WeightFormat::kF32)] += static_cast<int64_t>(values.size() * sizeof(float));
}

TensorView view_of(void* data, DType dtype, Shape shape) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.shape = shape;
  return view;
}

std::string OpPlace::text() const { return fmt::format("{} {} ({}/{})", op, where, backend, tactic); }

int64_t WeightBytes::total() const { return std::accumulate(by_format.begin(), by_format.end(), int64_t{0}); }

std::string WeightBytes::text() const {
  std::string text;
  for (size_t f = by_format.size(); f-- > 0;)
    if (by_format[f] > 0)
      text += fmt::format("{}{} {:.1f} MiB", text.empty() ? "" : ", ", name_of(static_cast<WeightFormat>(f)),
                          static_cast<double>(by_format[f]) / (1 << 20));
  return text;
}

}  // namespace mettle
