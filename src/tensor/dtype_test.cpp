// Codecs against independent logic: powers of two by exponent and mantissa, nearest values by exhaustive search.
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace mettle {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Dtype, SizesAndNamesOfAll) {
  const std::vector<std::pair<DType, size_t>> sizes = {
      {DType::kF32, 4}, {DType::kBF16, 2}, {DType::kF16, 2}, {DType::kF64, 8}, {DType::kE4M3, 1},
      {DType::kU8, 1},  {DType::kI8, 1},   {DType::kI32, 4}, {DType::kI64, 8}, {DType::kBool, 1}};
  const char* names[] = {"f32", "bf16", "f16", "f64", "e4m3", "u8", "i8", "i32", "i64", "bool"};
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(size_of(sizes[i].first), sizes[i].second);
    EXPECT_EQ(name_of(sizes[i].first), names[i]);
  }
}

// Value of an E4M3 code from its fields: bias 7, exponent 0 is subnormal, 0x7F is NaN.
long double e4m3_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const long double magnitude = exponent == 0 ? std::ldexp(static_cast<long double>(mantissa), -9)
                                              : std::ldexp(static_cast<long double>(8 + mantissa), exponent - 10);
  return (code & 128) != 0 ? -magnitude : magnitude;
}

TEST(E4m3, All256CodesDecode) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if ((code & 127) == 127) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(static_cast<long double>(value), e4m3_value(code)) << code;
      EXPECT_EQ(std::signbit(value), code >= 128) << code;
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7E), kE4M3Max);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
}

TEST(E4m3, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const uint8_t back = float_to_e4m3(e4m3_to_float(static_cast<uint8_t>(code)));
    EXPECT_EQ(back, (code & 127) == 127 ? 0x7F : code) << code;
  }
}

// Nearest code of the same sign, by looking at all; ties to the even code (E4M3 codes are ordered like their values, so
// the even mantissa is the even code).
uint8_t nearest_e4m3(float value) {
  int best = -1;
  long double distance = 0;
  for (int code = 0; code < 127; ++code) {
    const long double d = std::fabs(std::fabs(static_cast<long double>(value)) - e4m3_value(code));
    if (best < 0 || d < distance || (d == distance && code % 2 == 0)) {
      best = code;
      distance = d;
    }
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 128 : 0));
}

TEST(E4m3, EncodeIsNearestEven) {
  std::vector<float> values = {0.f, -0.f, 447.f, 448.f, 464.f, 465.f, 1e30f, 0x1p-10f, 0x1.8p-9f, 0x1p-126f, 1e-45f};
  for (int code = 0; code < 126; ++code) {  // midpoints and their neighbours
    const float middle = static_cast<float>((e4m3_value(code) + e4m3_value(code + 1)) / 2);
    for (const float v : {middle, std::nextafter(middle, 0.f), std::nextafter(middle, 1e9f)}) values.push_back(v);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i)
    values.push_back(
        std::ldexp(1.f + static_cast<float>(random() >> 8) * 0x1p-24f, static_cast<int>(random() % 24) - 13));
  for (const float v : values)
    for (const float signed_value : {v, -v})
      EXPECT_EQ(float_to_e4m3(signed_value), nearest_e4m3(signed_value)) << signed_value;
  EXPECT_EQ(float_to_e4m3(kInf), 0x7E);
  EXPECT_EQ(float_to_e4m3(-kInf), 0xFE);
  EXPECT_EQ(float_to_e4m3(kNan), 0x7F);
  EXPECT_EQ(float_to_e4m3(-kNan), 0x7F);
}

TEST(E2m1, All16CodesDecodeAndSurvive) {
  for (int code = 0; code < 16; ++code) {
    const int exponent = code >> 1 & 3, mantissa = code & 1;
    const float magnitude = exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                                          : std::ldexp(2.f + static_cast<float>(mantissa), exponent - 2);
    EXPECT_EQ(kE2M1[code], (code & 8) != 0 ? -magnitude : magnitude) << code;
    EXPECT_EQ(std::signbit(kE2M1[code]), code >= 8) << code;
    EXPECT_EQ(float_to_e2m1(kE2M1[code]), code);
  }
}

TEST(E2m1, EncodeIsNearestEvenAndSaturates) {
  for (int i = 0; i <= 8 * 64; ++i)
    for (const float step : {-1.f, 0.f, 1.f}) {
      float v = static_cast<float>(i) / 64.f;
      if (step != 0) v = std::nextafter(v, step * 1e9f);
      if (v < 0) continue;
      int best = 0;
      for (int code = 1; code < 8; ++code) {
        const double d = std::fabs(static_cast<double>(v) - static_cast<double>(kE2M1[code]));
        const double before = std::fabs(static_cast<double>(v) - static_cast<double>(kE2M1[best]));
        if (d < before || (d == before && code % 2 == 0)) best = code;
      }
      EXPECT_EQ(float_to_e2m1(v), best) << v;
      EXPECT_EQ(float_to_e2m1(-v), best | 8) << -v;
    }
  EXPECT_EQ(float_to_e2m1(1e30f), 7);
  EXPECT_EQ(float_to_e2m1(-kInf), 15);
  EXPECT_EQ(float_to_e2m1(kNan), 0);
}

TEST(Bf16, All65536CodesSurvive) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_float(static_cast<uint16_t>(bits));
    const uint16_t back = float_to_bf16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(back))) << bits;
    } else {
      EXPECT_EQ(back, bits);
    }
  }
}

// The two neighbours that are cut from the bits, the nearer one by exact arithmetic, the even one on ties.
uint16_t nearest_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto below = static_cast<uint16_t>(bits >> 16), above = static_cast<uint16_t>(below + 1);
  const auto exact = [](uint16_t code) {  // infinity stands for the next power of two when it comes to rounding
    return (code & 0x7FFF) == 0x7F80 ? std::ldexp(1.L, 128) : std::fabs(static_cast<long double>(bf16_to_float(code)));
  };
  const long double magnitude = std::fabs(static_cast<long double>(value));
  const long double down = magnitude - exact(below), up = exact(above) - magnitude;
  if (down == 0) return below;
  if (down != up) return down < up ? below : above;
  return below % 2 == 0 ? below : above;
}

TEST(Bf16, RoundsToNearestEven) {
  std::vector<uint32_t> patterns;
  for (uint32_t high = 0; high < 0x7F80; high += 7)  // all magnitudes, subnormals included, around the tie
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      patterns.push_back(high << 16 | low);
  for (const uint32_t special :
       {0x00000001u, 0x00007FFFu, 0x00008000u, 0x00018000u, 0x7F7F7FFFu, 0x7F7F8000u, 0x7F7FFFFFu})
    patterns.push_back(special);
  for (const uint32_t p : patterns)
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float value = std::bit_cast<float>(p | sign);
      ASSERT_EQ(float_to_bf16(value), nearest_bf16(value)) << std::hex << (p | sign);
    }
}

TEST(Bf16, NanStaysNanAndInfinityStays) {
  for (const uint32_t bits : {0x7F800001u, 0x7FFFFFFFu, 0x7FC00000u, 0xFF800001u, 0xFFFFFFFFu})
    EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(bits))))) << std::hex << bits;
  EXPECT_EQ(float_to_bf16(kInf), 0x7F80);
  EXPECT_EQ(float_to_bf16(-kInf), 0xFF80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80);  // nearest is beyond the largest bf16
}

TEST(F16, All65536CodesDecode) {
  for (int code = 0; code < 65536; ++code) {
    const int exponent = code >> 10 & 31, mantissa = code & 1023;
    const float value = f16_to_float(static_cast<uint16_t>(code));
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0) << code;
      EXPECT_EQ(std::isinf(value), mantissa == 0) << code;
      continue;
    }
    long double want =
        exponent == 0 ? mantissa / 16777216.L : (1024 + mantissa) / 1024.L * std::pow(2.L, exponent - 15);
    if (code >= 32768) want = -want;
    EXPECT_EQ(static_cast<long double>(value), want) << code;
    EXPECT_EQ(std::signbit(value), code >= 32768) << code;
  }
}

}  // namespace
}  // namespace mettle
