// The instructions of src/ops/cuda/device/ptx.cuh that modelled kernels use.
#pragma once
#include "cuda_bf16.h"
#include "cuda_runtime.h"

namespace mettle::ptx {

inline void copy_async_16(void* to, const void* from, bool ok) { modelled::copy_later(to, from, ok); }
inline void copy_async_4(void* to, const void* from, bool ok) { modelled::copy_later(to, from, ok, 4); }
inline void copy_async_commit() { modelled::commit_copies(); }
template <int N>
void copy_async_wait() {
  modelled::wait_for_copies(N);
}

inline double half_of(uint32_t word, int half) {
  return static_cast<double>(__uint_as_float(half == 0 ? word << 16 : word & 0xFFFF0000u));
}

// d[16x8] += a[16x16] b[16x8]; the sum of a step is truncated, which is the worst that tensor cores do.
inline void mma_16816(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  uint32_t* own = modelled::own_words();
  std::copy_n(a, 4, own);
  own[4] = b0, own[5] = b1;
  const auto& all = modelled::all_words();
  const int lane = modelled::lane();
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    double sum = static_cast<double>(d[e]);
    for (int k = 0; k < 16; ++k)
      sum += half_of(all[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2) *
             half_of(all[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
    const auto nearest = static_cast<float>(sum);
    d[e] = std::fabs(static_cast<double>(nearest)) > std::fabs(sum) ? std::nextafterf(nearest, 0) : nearest;
  }
}

inline uint4 load_weight(const void* p, bool ok) {
  uint4 v = {};
  if (ok) std::memcpy(&v, p, sizeof v);
  return v;
}
inline uint4 load_activation(const void* p, bool ok) { return load_weight(p, ok); }
inline uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  const auto half = [&](int i) {
    return uint32_t{__float2bfloat16_rn(static_cast<float>(half_of(a, i) * half_of(b, i)))};
  };
  return half(0) | half(1) << 16;
}

inline void trigger() {}
inline void wait() {}

}  // namespace mettle::ptx
