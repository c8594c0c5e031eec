// Decoding of p64 weights in registers, host and device, and its inverse for the packer. See ops/packed_p64.h.
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define METTLE_HD __host__ __device__ __forceinline__
#else
#define METTLE_HD inline
#endif

namespace mettle::p64 {

METTLE_HD uint32_t rotate_right(uint32_t x, int r) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(x, x, r);
#else
  return (x >> r) | (x << (32 - r));
#endif
}

// One word of 8 E2M1 codes -> 4 bf16 pairs of value E2M1 * 2^-126 (0.5 becomes a bf16 subnormal, which multiplies
// exactly). Pair p has one weight in each half word; target pattern: sign at bit 15, e e m at bits 8, 7, 6.
METTLE_HD void decode_codes(uint32_t w, uint32_t* pairs) {
  pairs[0] = w & 0x81C081C0u;
  pairs[1] = (w << 6) & 0x81C081C0u;
  pairs[2] = rotate_right(w, 6) & 0x81C081C0u;
  pairs[3] = ((w << 4) & 0x81808180u) | ((w >> 4) & 0x00400040u);
}

// code[p][half]: half 0 is the lower k.
inline uint32_t encode_codes(const uint8_t (*code)[2]) {
  uint32_t w = 0;
  for (int half = 0; half < 2; ++half) {
    const auto bit = [&](int p, int b) { return static_cast<uint32_t>(code[p][half] >> b & 1); };
    const uint32_t v = bit(0, 3) << 15 | bit(0, 2) << 8 | bit(0, 1) << 7 | bit(0, 0) << 6 |  //
                       bit(1, 3) << 9 | bit(1, 2) << 2 | bit(1, 1) << 1 | bit(1, 0) |        //
                       bit(2, 2) << 14 | bit(2, 1) << 13 | bit(2, 0) << 12 |                 //
                       bit(3, 3) << 11 | bit(3, 2) << 4 | bit(3, 1) << 3 | bit(3, 0) << 10;
    w |= v << (16 * half);
    w |= bit(2, 3) << (5 + 16 * (1 - half));  // the sign of pair 2 sits in the other half
  }
  return w;
}

// E4M3 scale code (never negative) -> 5-bit exponent, 3-bit mantissa, subnormals normalised. 0 has no form: see pack.
inline uint8_t encode_scale(uint8_t e4m3) {
  int exponent = (e4m3 >> 3) & 15, mantissa = e4m3 & 7;
  if (exponent == 0) {
    if (mantissa == 0) return 13 << 3;
    int shift = 0;
    for (; (mantissa & 8) == 0; mantissa <<= 1) ++shift;
    mantissa &= 7;
    exponent = 1 - shift;
  }
  return static_cast<uint8_t>((exponent - 7 + 22) << 3 | mantissa);
}

// Scale byte duplicated in both halves (0x00bb00bb) -> bf16 pair of value scale * 2^119.
METTLE_HD uint32_t decode_scale(uint32_t duplicated) { return duplicated * 16u + 0x70007000u; }

// code * scale so decoded stands at value * 2^-7.
inline constexpr float kNvfp4Out = 128.f;

// Word of four E4M3 codes {b.k0, a.k0, b.k1, a.k1} -> two bf16 pairs of value * 2^-120; times 2^120 is exact in bf16.
METTLE_HD void decode_fp8(uint32_t w, uint32_t* a, uint32_t* b) {
  *a = (w & 0x80008000u) | ((w >> 4) & 0x07F007F0u);
  *b = ((w << 8) & 0x80008000u) | ((w << 4) & 0x07F007F0u);
}
inline constexpr uint32_t kTwoTo120 = 0x7B807B80u;  // bf16 pair of 2^120

}  // namespace mettle::p64
