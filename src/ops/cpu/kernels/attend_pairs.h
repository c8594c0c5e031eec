// Tiles of attention by VDPBF16PS: q, keys, probabilities and values as bfloat16 pairs, sums in float32. E4M3 codes are
// exact in bfloat16. Denormals count as zero, as product_bf16.h says.
#pragma once
#include "ops/cpu/kernels/attend_tile.h"
#include "ops/cpu/kernels/product_bf16.h"

namespace mettle::cpu {
namespace {

struct PairMul {
  using In = uint16_t;
  static constexpr int kStep = 2, kRows = 8, kTiles = 2;

  static uint16_t in(uint16_t v) { return v; }
  static uint16_t in(uint8_t v) { return static_cast<uint16_t>(as_bits(e4m3_of(v)) >> 16); }
  static uint16_t of_p(float p, bool) { return static_cast<uint16_t>(bf16_of(p)); }
  static void values(const uint16_t* v, const uint16_t* after, uint16_t* to) {
    auto* pairs_of = reinterpret_cast<uint32_t*>(to);
    for (int d = 0; d < 16; ++d) pairs_of[d] = v[d] | static_cast<uint32_t>(after[d]) << 16;
  }
  // The partner of an odd count's last input is left out of both factors.
  template <int T, int R>
  static inline __attribute__((always_inline)) void multiply(const uint16_t* x, int64_t stride, const uint16_t* panel,
                                                             int64_t panel_stride, int count, Vec (&sum)[T][R]) {
    const auto step = [&](int k, __m512i keep) __attribute__((always_inline)) {
      __m512i w[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) w[t] = _mm512_and_si512(_mm512_loadu_si512(panel + t * panel_stride + k * 16), keep);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Pairs xk = pairs(_mm512_and_si512(pair_at(x + r * stride + k), keep));
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sum[t][r].v = _mm512_dpbf16_ps(sum[t][r].v, pairs(w[t]), xk);
      }
    };
    int k = 0;
    for (; k + 2 <= count; k += 2) step(k, _mm512_set1_epi32(-1));
    if (k < count) step(k, _mm512_set1_epi32(0xFFFF));
  }
};

}  // namespace
}  // namespace mettle::cpu
