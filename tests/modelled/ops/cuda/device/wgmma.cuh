// src/ops/cuda/device/wgmma.cuh in plain code. A bulk copy lands when its barrier is waited for and not before; products
// are done at once, so a missing wait for them is not seen. Registers that change hands are not modelled.
#pragma once
#include <map>
#include <vector>

#include "cuda_runtime.h"
#include "ops/cuda/device/ptx.cuh"

namespace mettle::ptx {

struct ModelledBarrier {
  struct Copy {
    void* to;
    const void* from;
    uint32_t bytes;
  };
  uint32_t count = 0, left = 0, round = 0;
  int64_t bytes = 0;  // that are expected and not there
  std::vector<Copy> under_way;
};
inline std::map<const uint64_t*, ModelledBarrier> barriers;

inline void step_on(ModelledBarrier& b) {
  if (b.left > 0 || b.bytes > 0) return;
  b.left = b.count;
  ++b.round;
}
inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)); }
inline void barrier_init(uint64_t* b, uint32_t count) {
  barriers[b] = {};
  barriers[b].count = barriers[b].left = count;
}
inline void barrier_init_done() {}
inline void barrier_arrive(uint64_t* b) {
  ModelledBarrier& m = barriers.at(b);
  if (m.left == 0) __builtin_trap();
  --m.left;
  step_on(m);
}
inline void barrier_wait(uint64_t* b, uint32_t parity) {
  ModelledBarrier& m = barriers.at(b);
  for (int waits = 0; (m.round & 1) == parity; ++waits) {
    if (waits == 10'000'000) __builtin_trap();
    for (const ModelledBarrier::Copy& c : m.under_way) {
      std::memcpy(c.to, c.from, c.bytes);
      m.bytes -= c.bytes;
    }
    const bool landed = !m.under_way.empty();
    m.under_way.clear();
    if (landed) step_on(m);
    if ((m.round & 1) == parity) modelled::let_others_run(1);
  }
}
inline void barrier_expect(uint64_t* b, uint32_t bytes) {
  barriers.at(b).bytes += bytes;
  barrier_arrive(b);
}
inline void bulk_copy_more(void* to, const void* from, uint32_t bytes, uint64_t* b) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) % 16 != 0) __builtin_trap();
  barriers.at(b).under_way.push_back({to, from, bytes});
}
inline void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* b) {
  barrier_expect(b, bytes);
  bulk_copy_more(to, from, bytes, b);
}
inline void async_proxy_fence() {}
template <int N>
void more_registers() {}
template <int N>
void fewer_registers() {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int N>
void wgmma_wait() {}

// A tile is aligned to 1024 bytes; its rows of 128 are swizzled by 16. A descriptor counts in 16 bytes.
inline uint64_t wgmma_tile(const void* tile) {
  if (reinterpret_cast<uintptr_t>(tile) % 1024 != 0) __builtin_trap();
  return reinterpret_cast<uintptr_t>(tile) >> 4;
}
// A warp's 16 rows of the 64. The sum of a step is rounded as mma_16816() has it.
template <int N>
void wgmma(float (&d)[N / 2], const uint32_t* a, uint64_t b, bool add) {
  uint32_t* own = modelled::own_words();
  std::copy_n(a, 4, own);
  const auto& all = modelled::all_words();
  const auto* tile = reinterpret_cast<const char*>(b << 4 & ~uint64_t{1023});
  const int lane = modelled::lane(), first_chunk = static_cast<int>(b & 7);
  for (int e = 0; e < 2; ++e) {
    double row[16];
    for (int k = 0; k < 16; ++k) row[k] = half_of(all[lane / 4 * 4 + k % 8 / 2][e + k / 8 * 2], k % 2);
    for (int n = 0; n < N / 8; ++n)
      for (int q = 0; q < 2; ++q) {
        const int column = n * 8 + lane % 4 * 2 + q;
        float& to = d[4 * n + 2 * e + q];
        double sum = add ? static_cast<double>(to) : 0;
        for (int half = 0; half < 2; ++half) {
          uint32_t words[4];
          std::memcpy(words, tile + column * 128 + ((first_chunk + half) ^ (column & 7)) * 16, 16);
          for (int k = 0; k < 8; ++k) sum += row[8 * half + k] * half_of(words[k / 2], k % 2);
        }
        const auto nearest = static_cast<float>(sum);
        to = std::fabs(static_cast<double>(nearest)) > std::fabs(sum) ? std::nextafterf(nearest, 0) : nearest;
      }
  }
}

}  // namespace mettle::ptx
