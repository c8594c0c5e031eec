// What one element adds to RowApart, the same on both sides.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define METTLE_BOTH_SIDES __host__ __device__ __forceinline__
#else
#define METTLE_BOTH_SIDES inline
#endif

namespace mettle::apart {

METTLE_BOTH_SIDES float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
METTLE_BOTH_SIDES float value(uint32_t bits) { return float_of(bits); }
METTLE_BOTH_SIDES float value(uint16_t bits) { return float_of(uint32_t{bits} << 16); }
METTLE_BOTH_SIDES float value(uint8_t code) {
  const uint32_t sign = uint32_t{code & 0x80u} << 24, exponent = code >> 3 & 15u, mantissa = code & 7u;
  if ((code & 0x7Fu) == 0x7Fu) return float_of(0x7FC00000u);
  if (exponent == 0) return (sign != 0 ? -1.f : 1.f) * static_cast<float>(mantissa) * 0x1p-9f;
  return float_of(sign | (exponent + 120u) << 23 | mantissa << 20);
}

METTLE_BOTH_SIDES bool finite(float x) { return x - x == 0.f; }

// Added up over a row in any order.
METTLE_BOTH_SIDES uint64_t hash(uint32_t bits, int64_t column) {
  uint64_t x = (static_cast<uint64_t>(column) << 32 | bits) + 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

}  // namespace mettle::apart
