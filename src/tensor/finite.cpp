#include "tensor/finite.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

// All exponent bits set and the lowest of them added carry into the sign's place.
template <class Bits, Bits kExponent>
bool finite(const Bits* values, int64_t n) {
  constexpr Bits kLowest = kExponent & static_cast<Bits>(-kExponent);
  constexpr int kLanes = 64 / sizeof(Bits);
  Bits carried[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      carried[lane] |= static_cast<Bits>(static_cast<Bits>(values[i + lane] & kExponent) + kLowest);
  Bits any = 0;
  for (; i < n; ++i) any |= static_cast<Bits>(static_cast<Bits>(values[i] & kExponent) + kLowest);
  for (const Bits c : carried) any |= c;
  return any >> (8 * sizeof(Bits) - 1) == 0;
}

}  // namespace

void mark_not_finite(const TensorView& values, const int32_t* rows, int32_t mark, int32_t* marks) {
  CHECK(values.dtype == DType::kF32 || values.dtype == DType::kBF16, "mark_not_finite of another dtype");
  const int64_t n = values.shape[0], width = n == 0 ? 0 : values.shape.elements() / n;
  for (int64_t i = 0; i < n; ++i) {
    const bool ok = values.dtype == DType::kF32 ? finite<uint32_t, 0x7f800000>(values.as<uint32_t>() + i * width, width)
                                                : finite<uint16_t, 0x7f80>(values.as<uint16_t>() + i * width, width);
    if (ok) continue;
    int32_t& at = marks[rows == nullptr ? i : rows[i]];
    at = std::min(at, mark);
  }
}

#if !METTLE_CUDA
namespace gpu {
void mark_not_finite(const TensorView&, const int32_t*, int32_t, int32_t*, void*) {
  fail(Code::kDevice, "gpu: " + why_none());
}
}  // namespace gpu
#endif

}  // namespace mettle
