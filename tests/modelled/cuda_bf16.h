#pragma once
#include "cuda_runtime.h"

inline uint16_t __float2bfloat16_rn(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline uint16_t __bfloat16_as_ushort(uint16_t bits) { return bits; }
