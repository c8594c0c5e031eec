// When the requests of an open loop are due.
#pragma once
#include <cstdint>
#include <vector>

#include "load/load.h"

namespace mettle {

// Seconds since the start, the first at 0; gaps have the mean 1/rate and are exponential (kPoisson) or gamma with shape
// `burstiness`, so their coefficient of variation is 1/sqrt(burstiness). The same seed gives the same times.
std::vector<double> arrival_times(size_t count, Arrival arrival, double rate, double burstiness, uint64_t seed);

}  // namespace mettle
