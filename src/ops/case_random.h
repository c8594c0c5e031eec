// Random numbers of the cases: the same on every machine and compiler, so a failing case can be named by its seed.
#pragma once
#include <cmath>
#include <cstdint>

namespace mettle {

class CaseRandom {
 public:
  explicit CaseRandom(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u) {}

  uint64_t next() {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  int below(int n) { return static_cast<int>((next() >> 32) * static_cast<uint64_t>(n) >> 32); }
  bool chance(double p) { return uniform() < p; }
  // Variance 1, bell-shaped: four 16-bit numbers of one draw, added. Large values come from the outlier cases.
  double normal() {
    const uint64_t z = next();
    const double sum = static_cast<double>((z & 0xFFFF) + (z >> 16 & 0xFFFF) + (z >> 32 & 0xFFFF) + (z >> 48));
    return (sum - 2 * 65535.0) * (1.7320508075688772 / 65536.0);
  }

 private:
  uint64_t state_;
};

}  // namespace mettle
