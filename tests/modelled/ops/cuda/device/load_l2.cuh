// src/ops/cuda/device/load_l2.cuh in plain code.
#pragma once
#include <cstdint>

namespace mettle::cuda {

inline int32_t load_l2(const int32_t* p) { return *p; }
template <class T>
const T* load_l2(const T* const* p) {
  return *p;
}

}  // namespace mettle::cuda
