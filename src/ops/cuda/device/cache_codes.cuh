// E4M3 codes of the KV cache (ops/attention.h): written saturating, widened exactly to bf16 pairs. Host and device.
#pragma once
#include <cstdint>

#include "ops/cuda/device/p64.cuh"
#include "tensor/dtype.h"

#if defined(__CUDACC__)
#include <cuda_fp8.h>

#include "ops/cuda/device/ptx.cuh"
#endif

namespace mettle::cuda {

METTLE_HD uint32_t times_two_to_120(uint32_t pair) {
#if defined(__CUDA_ARCH__)
  return ptx::mul_bf16x2(pair, p64::kTwoTo120);
#else
  const auto of = [](uint32_t half) {
    return uint32_t{float_to_bf16(bf16_to_float(static_cast<uint16_t>(half)) * 0x1p120f)};
  };
  return of(pair & 0xFFFFu) | of(pair >> 16) << 16;
#endif
}

// Codes in the high bytes of both halves. NaN becomes 480 here: see holds_nan().
METTLE_HD uint32_t widen_halves(uint32_t halves) {
  return times_two_to_120((halves & 0x80008000u) | ((halves >> 4) & 0x07F007F0u));
}
// The first two of four codes as such halves, and the last two.
METTLE_HD uint32_t low_codes(uint32_t w) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(w, 0, 0x1404);
#else
  return (w & 0xFFu) << 8 | (w & 0xFF00u) << 16;
#endif
}
METTLE_HD uint32_t high_codes(uint32_t w) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(w, 0, 0x3424);
#else
  return (w >> 8 & 0xFF00u) | (w & 0xFF000000u);
#endif
}

// Not zero when one of four codes is NaN; may be gathered over many words by OR.
METTLE_HD uint32_t holds_nan(uint32_t w) { return ((w & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u; }
// Widened halves with the NaN codes made NaN.
METTLE_HD uint32_t mend_nan(uint32_t widened, uint32_t halves) {
  const uint32_t nan = ((halves & 0x7F007F00u) + 0x01000100u) & 0x80008000u;
  return widened | (nan - (nan >> 15));
}

// Four codes, first in the low byte -> two pairs.
METTLE_HD void widen_codes(uint32_t w, uint32_t* pair) {
  pair[0] = widen_halves(low_codes(w));
  pair[1] = widen_halves(high_codes(w));
}
METTLE_HD void widen_codes_with_nan(uint32_t w, uint32_t* pair) {
  widen_codes(w, pair);
  pair[0] = mend_nan(pair[0], low_codes(w));
  pair[1] = mend_nan(pair[1], high_codes(w));
}

#if defined(__CUDACC__)

__device__ __forceinline__ uint8_t to_code(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }

// One value of a cache, without the scale of codes.
__device__ __forceinline__ float cached_value(const uint16_t* cache, int64_t at) {
  return __uint_as_float(uint32_t{cache[at]} << 16);
}
__device__ __forceinline__ float cached_value(const uint8_t* cache, int64_t at) {
  uint32_t pair[2];
  widen_codes_with_nan(cache[at], pair);
  return __uint_as_float(pair[0] << 16);
}

// Eight values of a cache as they lie there, and as four bf16 pairs.
template <bool kCodes>
struct Eight;
template <>
struct Eight<false> {
  uint4 raw;
  __device__ __forceinline__ void load(const void* cache, int64_t at, bool ok) {
    raw = ptx::load_activation(ok ? static_cast<const uint16_t*>(cache) + at : nullptr, ok);
  }
  __device__ __forceinline__ uint32_t nan() const { return 0; }
  __device__ __forceinline__ uint4 pairs(bool) const { return raw; }
};
template <>
struct Eight<true> {
  uint2 raw;
  __device__ __forceinline__ void load(const void* cache, int64_t at, bool ok) {
    const void* from = ok ? static_cast<const uint8_t*>(cache) + at : nullptr;
    asm volatile(
        "{\n.reg .pred q;\nsetp.ne.u32 q,%3,0;\nmov.u32 %0,0;mov.u32 %1,0;\n"
        "@q ld.global.v2.u32 {%0,%1},[%2];\n}\n"
        : "=&r"(raw.x), "=&r"(raw.y)
        : "l"(from), "r"(static_cast<uint32_t>(ok))
        : "memory");
  }
  __device__ __forceinline__ uint32_t nan() const { return holds_nan(raw.x) | holds_nan(raw.y); }
  // with_nan: some code of the thread may be NaN.
  __device__ __forceinline__ uint4 pairs(bool with_nan) const {
    uint32_t p[4];
    widen_codes(raw.x, p);
    widen_codes(raw.y, p + 2);
    if (with_nan) {
      widen_codes_with_nan(raw.x, p);
      widen_codes_with_nan(raw.y, p + 2);
    }
    return make_uint4(p[0], p[1], p[2], p[3]);
  }
};

#endif

}  // namespace mettle::cuda
