// 16 floats as one AVX-512 register (F, BW, DQ, VL).
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace mettle::cpu {
namespace {

struct Vec {
  __m512 v;
  static constexpr int kRows = 8;  // rows of a gemv block
  static constexpr int kPanelRows = 8, kPanelTiles = 2;

  using Bits = __m512i;
  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec set(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  static Vec widen(const uint16_t* p) {
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))};
  }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }

  static Bits load_bits(const uint8_t* p) { return _mm512_loadu_si512(p); }
  // The permutation looks at the low four bits of an index only: no mask.
  static Vec e2m1(Bits x, int nibble) {
    const __m512 values = _mm512_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f);
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(x, static_cast<unsigned>(4 * nibble)), values)};
  }
  static Vec bf16_low(Bits x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))}; }
  static Vec bf16_high(Bits x) {
    return {_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))};
  }
  // 16 e4m3 bytes times 2^-8: moved into half precision by a shift (subnormals become half's subnormals), then widened.
  static Vec e4m3(const uint8_t* p) {
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i half = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
    return {_mm512_cvtph_ps(half)};
  }
};

// out[d * 16 + j] = row j, element d.
void transpose16(const float* rows, int64_t stride, float* out, int n) {
  const __m512i offsets = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                             _mm512_set1_epi32(static_cast<int>(stride)));
  for (int d = 0; d < n; ++d) _mm512_storeu_ps(out + d * 16, _mm512_i32gather_ps(offsets, rows + d, 4));
}

}  // namespace
}  // namespace mettle::cpu
