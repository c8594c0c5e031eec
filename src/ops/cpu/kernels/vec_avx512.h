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
    const __m512 values =
        _mm512_setr_ps(0.f, .5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f, -0.f, -.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f);
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

// out[i * 16 + j] = dword i of the 64 bytes at rows[j] + offset.
inline void transpose16x16(const uint8_t* const* rows, int64_t offset, uint32_t* out) {
  __m512 r[16], t[16];
  for (int j = 0; j < 16; ++j) r[j] = _mm512_loadu_ps(rows[j] + offset);
  for (int j = 0; j < 16; j += 2) {
    t[j] = _mm512_unpacklo_ps(r[j], r[j + 1]);
    t[j + 1] = _mm512_unpackhi_ps(r[j], r[j + 1]);
  }
  const auto d = [](__m512 x) { return _mm512_castps_pd(x); };
  const auto s = [](__m512d x) { return _mm512_castpd_ps(x); };
  for (int j = 0; j < 16; j += 4) {  // r[j + c]: column c of each 4-column lane, rows j..j+3
    r[j] = s(_mm512_unpacklo_pd(d(t[j]), d(t[j + 2])));
    r[j + 1] = s(_mm512_unpackhi_pd(d(t[j]), d(t[j + 2])));
    r[j + 2] = s(_mm512_unpacklo_pd(d(t[j + 1]), d(t[j + 3])));
    r[j + 3] = s(_mm512_unpackhi_pd(d(t[j + 1]), d(t[j + 3])));
  }
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88), b = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
    const __m512 e = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xDD), f = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xDD);
    _mm512_storeu_ps(out + c * 16, _mm512_shuffle_f32x4(a, b, 0x88));
    _mm512_storeu_ps(out + (4 + c) * 16, _mm512_shuffle_f32x4(e, f, 0x88));
    _mm512_storeu_ps(out + (8 + c) * 16, _mm512_shuffle_f32x4(a, b, 0xDD));
    _mm512_storeu_ps(out + (12 + c) * 16, _mm512_shuffle_f32x4(e, f, 0xDD));
  }
}

}  // namespace
}  // namespace mettle::cpu
