// src/ops/cuda/device/copy_barrier.cuh in plain code. What copies bring lands when somebody waits for it and not
// before.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

namespace mettle::ptx {

struct CopyBarrier {
  uint64_t state;
};
namespace copy_barrier {

struct Modelled {
  uint32_t arrivals = 0, left = 0, round = 0, under_way = 0;
  std::vector<modelled::Copy> copies;
};
inline std::map<const CopyBarrier*, Modelled> all;

inline void arrived(Modelled& m, uint32_t times) {
  if (times > m.left) __builtin_trap();
  if ((m.left -= times) > 0) return;
  m.left = m.arrivals;
  ++m.round;
}
inline void init(CopyBarrier& b, uint32_t arrivals) { all[&b] = {.arrivals = arrivals, .left = arrivals}; }
inline void arrive(CopyBarrier& b) { arrived(all.at(&b), 1); }
inline void arrive_when_copied(CopyBarrier& b) {
  Modelled& m = all.at(&b);
  for (const modelled::Copy& c : modelled::take_open_copies()) m.copies.push_back(c);
  ++m.under_way;
}
inline void wait(CopyBarrier& b, uint32_t parity) {
  Modelled& m = all.at(&b);
  for (int waits = 0; (m.round & 1) == parity; ++waits) {
    if (waits == 10'000'000) __builtin_trap();
    for (const modelled::Copy& c : m.copies) c.land();
    m.copies.clear();
    const uint32_t there = std::exchange(m.under_way, 0);
    if (there > 0) arrived(m, there);
    if ((m.round & 1) == parity) modelled::let_others_run(1);
  }
}

}  // namespace copy_barrier
}  // namespace mettle::ptx
