#include "load/arrivals.h"

#include <cmath>
#include <random>

namespace mettle {
namespace {

// The distributions of the standard library differ between libraries; these do not.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double uniform() {  // in (0, 1)
    return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53;
  }
  double normal() {  // Marsaglia's polar method
    for (;;) {
      const double u = 2 * uniform() - 1, v = 2 * uniform() - 1, s = u * u + v * v;
      if (s < 1 && s > 0) return u * std::sqrt(-2 * std::log(s) / s);
    }
  }
  double exponential() { return -std::log(uniform()); }
  double gamma(double shape) {  // scale 1; Marsaglia and Tsang
    if (shape < 1) return gamma(shape + 1) * std::pow(uniform(), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal(), v = std::pow(1 + c * x, 3);
      if (v > 0 && std::log(uniform()) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
    }
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace

std::vector<double> arrival_times(size_t count, Arrival arrival, double rate, double burstiness, uint64_t seed) {
  std::vector<double> times(count, 0.0);
  if (arrival == Arrival::kClosed) return times;
  Random random(seed);
  for (size_t i = 1; i < count; ++i) {
    const double gap = arrival == Arrival::kPoisson ? random.exponential() : random.gamma(burstiness) / burstiness;
    times[i] = times[i - 1] + gap / rate;
  }
  return times;
}

}  // namespace mettle
