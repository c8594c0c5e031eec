// 16 floats as two AVX2 registers. Every CPU with AVX2 also has F16C.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace mettle::cpu {
namespace {

struct Vec {
  __m256 a, b;
  static constexpr int kRows = 3;  // rows of a gemv block
  static constexpr int kPanelRows = 6, kPanelTiles = 1;

  struct Bits {
    __m256i a, b;
  };
  static Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vec set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  void store(float* p) const {
    _mm256_storeu_ps(p, a);
    _mm256_storeu_ps(p + 8, b);
  }
  static __m256 widen8(const uint16_t* p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
  }
  static Vec widen(const uint16_t* p) { return {widen8(p), widen8(p + 8)}; }
  static Vec fma(Vec x, Vec y, Vec c) { return {_mm256_fmadd_ps(x.a, y.a, c.a), _mm256_fmadd_ps(x.b, y.b, c.b)}; }
  static Vec mul(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static Vec add(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }

  static Bits load_bits(const uint8_t* p) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
  }
  // Eight magnitudes fit a permutation; bit 3 of the code becomes the sign.
  static __m256 e2m1_8(__m256i x, int nibble) {
    const __m256 magnitudes = _mm256_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f);
    const __m256i sign =
        _mm256_and_si256(_mm256_slli_epi32(x, 28 - 4 * nibble), _mm256_set1_epi32(static_cast<int>(0x80000000u)));
    const __m256 value = _mm256_permutevar8x32_ps(magnitudes, _mm256_srli_epi32(x, 4 * nibble));
    return _mm256_or_ps(value, _mm256_castsi256_ps(sign));
  }
  static Vec e2m1(const Bits& x, int nibble) { return {e2m1_8(x.a, nibble), e2m1_8(x.b, nibble)}; }
  static Vec bf16_low(const Bits& x) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.b, 16))};
  }
  static Vec bf16_high(const Bits& x) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(x.a, mask)), _mm256_castsi256_ps(_mm256_and_si256(x.b, mask))};
  }
  // 16 e4m3 bytes times 2^-8: moved into half precision by a shift (subnormals become half's subnormals), then widened.
  static Vec e4m3(const uint8_t* p) {
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
  }
};

// out[i * 16 + j] = dword i of the 64 bytes at rows[j] + offset.
inline void transpose16x16(const uint8_t* const* rows, int64_t offset, uint32_t* out) {
  for (int j = 0; j < 16; ++j)
    for (int i = 0; i < 16; ++i) std::memcpy(out + i * 16 + j, rows[j] + offset + i * 4, 4);
}

}  // namespace
}  // namespace mettle::cpu
