// Element types and their codecs. BF16: round to nearest even, NaN stays NaN. E4M3 is the "fn" variant (no infinity,
// 0x7F and 0xFF are NaN, largest 448). E2M1 codes 0..15: sign in bit 3, magnitudes 0 .5 1 1.5 2 3 4 6.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mettle {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kE4M3, kU8, kI8, kI32, kI64, kBool };

size_t size_of(DType dtype);
std::string_view name_of(DType dtype);  // f32, bf16, f16, f64, e4m3, u8, i8, i32, i64, bool

inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);  // keep it a (quiet) NaN
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float f16_to_float(uint16_t bits);

inline constexpr float kE2M1[16] = {0.f,  .5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                                    -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
inline constexpr float kE4M3Max = 448.f;
inline constexpr float kE2M1Max = 6.f;

float e4m3_to_float(uint8_t code);
// Nearest, ties to even, saturating at +-448; NaN gives 0x7F.
uint8_t float_to_e4m3(float value);
// Nearest, ties to the even mantissa, saturating at +-6; NaN gives 0.
uint8_t float_to_e2m1(float value);

}  // namespace mettle
