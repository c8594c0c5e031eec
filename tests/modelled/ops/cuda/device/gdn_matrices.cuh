// src/ops/cuda/device/gdn_matrices.cuh in plain code.
#pragma once
#include "cuda_bf16.h"

namespace mettle::ptx {

inline void load_eight_rows(uint32_t (&r)[4], const uint16_t* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) __builtin_trap();
  std::memcpy(modelled::own_words(), row, 16);
  const auto& all = modelled::all_words();
  const int lane = modelled::lane();
  for (int m = 0; m < 4; ++m) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int along = lane % 4 * 2 + i, across = lane / 4;
      const uint32_t* words = all[8 * m + (transposed ? along : across)];
      std::memcpy(&pair[i], reinterpret_cast<const char*>(words) + 2 * (transposed ? across : along), 2);
    }
    r[m] = pair[0] | uint32_t{pair[1]} << 16;
  }
}
inline void load_matrices(uint32_t (&r)[4], const uint16_t* row) { load_eight_rows(r, row, false); }
inline void load_matrices_transposed(uint32_t (&r)[4], const uint16_t* row) { load_eight_rows(r, row, true); }
inline uint32_t pack_bf16(float first, float second) {
  return __float2bfloat16_rn(first) | uint32_t{__float2bfloat16_rn(second)} << 16;
}

}  // namespace mettle::ptx
