// Data that blocks of one grid hand each other while they run: 8 bytes and, with each 4 of them, the number of the
// launch. Who reads waits until the number is there; a packet of an earlier launch is not mistaken for it.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace mettle::cuda {

using Packet = ulonglong2;  // each half is written and read at once: number, data

__device__ __forceinline__ void send(Packet* to, uint32_t a, uint32_t b, uint32_t number) {
  const uint64_t tag = uint64_t{number} << 32;
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0],{%1,%2};" ::"l"(to), "l"(tag | a), "l"(tag | b) : "memory");
}

// `count` packets, a constant, at from, from + step, ...; all are asked for at once. Those not `wanted` stay 0. A
// sender that is not there within seconds is a fault of the program: the kernel fails rather than hangs.
template <int COUNT, class Wanted>
__device__ __forceinline__ void receive(uint2 (&data)[COUNT], const Packet* from, int step, uint32_t number,
                                        const Wanted& wanted) {
  constexpr int64_t kPatience = 20'000'000'000;  // clocks, about ten seconds
  const int64_t begin = clock64();
  for (bool all = false; !all;) {
    uint64_t a[COUNT], b[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      a[i] = b[i] = uint64_t{number} << 32;
      if (wanted(i))
        asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1},[%2];"
                     : "=l"(a[i]), "=l"(b[i])
                     : "l"(from + i * step)
                     : "memory");
    }
    all = true;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      all = all && static_cast<uint32_t>(a[i] >> 32) == number && static_cast<uint32_t>(b[i] >> 32) == number;
      data[i] = make_uint2(static_cast<uint32_t>(a[i]), static_cast<uint32_t>(b[i]));
    }
    if (!all && clock64() - begin > kPatience) __trap();
  }
}

}  // namespace mettle::cuda
