#include "checkpoint/requantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "tensor/dtype.h"

namespace mettle {
namespace {

// Below it float32 has no full precision left; rows of zeros and almost zeros take it.
constexpr float kLeastScale = 0x1p-126f;

uint16_t bf16_at(const uint8_t* row, int64_t col) {  // rows of a file may stand at odd addresses
  uint16_t bits;
  std::memcpy(&bits, row + 2 * col, sizeof bits);
  return bits;
}

}  // namespace

RawMatrix requantised_fp8(const RawMatrix& bf16, WeightMemory& memory, ThreadTeam* team) {
  CHECK(bf16.format == WeightFormat::kBf16, fmt::format("{}: requantised from {}", bf16.name, name_of(bf16.format)));
  uint8_t* codes = memory.take(static_cast<size_t>(bf16.rows * bf16.cols));
  float* scales = memory.take_of<float>(bf16.rows);
  std::atomic<int64_t> bad{bf16.rows};
  share_out(team, bf16.rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const uint8_t* row = bf16.data + r * bf16.row_bytes;
      int largest = 0;  // bits without the sign: their order is that of the magnitudes
      for (int64_t k = 0; k < bf16.cols; ++k) largest = std::max(largest, bf16_at(row, k) & 0x7FFF);
      if (largest >= 0x7F80) {
        int64_t first = bad.load();
        while (r < first && !bad.compare_exchange_weak(first, r)) {
        }
        continue;
      }
      scales[r] = std::max(bf16_to_float(static_cast<uint16_t>(largest)) / kE4M3Max, kLeastScale);
      for (int64_t k = 0; k < bf16.cols; ++k)
        codes[r * bf16.cols + k] = float_to_e4m3(bf16_to_float(bf16_at(row, k)) / scales[r]);
    }
  });
  if (bad < bf16.rows) fail(Code::kBadModel, fmt::format("{}: must be finite, row {} is not", bf16.name, bad.load()));
  RawMatrix fp8 = bf16;
  fp8.format = WeightFormat::kFp8;
  fp8.data = codes;
  fp8.row_bytes = bf16.cols;
  fp8.row_scale = scales;
  return fp8;
}

}  // namespace mettle
