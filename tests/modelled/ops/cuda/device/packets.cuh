// src/ops/cuda/device/packets.cuh in plain code; blocks are threads of the CPU.
#pragma once
#include "cuda_runtime.h"

namespace mettle::cuda {

struct Packet {
  uint64_t a, b;
};

inline void send(Packet* to, uint32_t a, uint32_t b, uint32_t number) {
  const uint64_t tag = uint64_t{number} << 32;
  __atomic_store_n(&to->a, tag | a, __ATOMIC_RELAXED);
  __atomic_store_n(&to->b, tag | b, __ATOMIC_RELAXED);
}

template <int COUNT, class Wanted>
void receive(uint2 (&data)[COUNT], const Packet* from, int step, uint32_t number, const Wanted& wanted) {
  for (int i = 0; i < COUNT; ++i) {
    data[i] = {};
    if (!wanted(i)) continue;
    for (uint64_t a = 0, b = 0; a >> 32 != number || b >> 32 != number;) {
      a = __atomic_load_n(&from[i * step].a, __ATOMIC_RELAXED);
      b = __atomic_load_n(&from[i * step].b, __ATOMIC_RELAXED);
      data[i] = {static_cast<uint32_t>(a), static_cast<uint32_t>(b)};
      modelled::let_others_run(1);
    }
  }
}

}  // namespace mettle::cuda
