#include "tensor/dtype.h"

#include <array>

#include "base/error.h"

namespace mettle {
namespace {

constexpr std::array<float, 256> make_e4m3() {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    float value = exponent == 0 ? static_cast<float>(mantissa) / 512.f : 1.f + static_cast<float>(mantissa) / 8.f;
    for (int e = 7; e < exponent; ++e) value *= 2.f;
    for (int e = exponent; exponent > 0 && e < 7; ++e) value /= 2.f;
    table[static_cast<size_t>(code)] = (code & 128) != 0 ? -value : value;
  }
  return table;
}
constexpr std::array<float, 256> kE4M3 = make_e4m3();

}  // namespace

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kE4M3:
    case DType::kU8:
    case DType::kI8:
    case DType::kBool:
      return 1;
  }
  fail(Code::kInternal, "dtype: no such code");
}

std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "f16", "f64", "e4m3", "u8", "i8", "i32", "i64", "bool"};
  return kNames[static_cast<size_t>(dtype)];
}

float f16_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.f : 1.f;
  if (exponent == 31) return mantissa != 0 ? std::bit_cast<float>(0x7FC00000u) : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

float e4m3_to_float(uint8_t code) { return (code & 0x7F) == 0x7F ? std::bit_cast<float>(0x7FC00000u) : kE4M3[code]; }

uint8_t float_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), a = bits & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return 0x7F;
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  if (a >= std::bit_cast<uint32_t>(kE4M3Max)) return sign | 0x7E;
  if (a < std::bit_cast<uint32_t>(0x1p-6f)) {  // subnormal: the sum keeps multiples of 2^-9, and so does the code
    const float units = std::bit_cast<float>(a) + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(units) - std::bit_cast<uint32_t>(0x1p14f));
  }
  const uint32_t rounded = a + 0x7FFFFu + (a >> 20 & 1u);  // three bits of fraction; a carry moves the exponent
  return sign | static_cast<uint8_t>((rounded >> 20) - (120u << 3));
}

uint8_t float_to_e2m1(float value) {
  if (std::isnan(value)) return 0;
  const uint8_t sign = std::signbit(value) ? 8 : 0;
  const float a = std::fabs(value);
  // Midpoints go to the neighbour with the even mantissa: .25->0 .75->1 1.25->1 1.75->2 2.5->2 3.5->4 5->4.
  if (a <= 0.25f) return sign;
  if (a < 0.75f) return sign | 1;
  if (a <= 1.25f) return sign | 2;
  if (a < 1.75f) return sign | 3;
  if (a <= 2.5f) return sign | 4;
  if (a < 3.5f) return sign | 5;
  if (a <= 5.0f) return sign | 6;
  return sign | 7;
}

}  // namespace mettle
