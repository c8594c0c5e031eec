// What is suspicious in a checkpoint, told from headers and from tensors small enough to read in passing.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace mettle {

struct Anomaly {
  std::string what;      // one sentence for all of its kind
  std::string first;     // the first tensor or module of it
  std::string value;     // what is there; may be empty
  int64_t count = 0;     // how many
  bool refused = false;  // such a checkpoint is refused at load
};

struct Anomalies {
  std::vector<Anomaly> found;
  int64_t tensors_read = 0, bytes_read = 0;  // of the small tensors
  int64_t tensors_left = 0;                  // whose values only a load checks
};

struct AnomalyLimits {
  int64_t tensor_bytes = int64_t{64} << 10;  // larger ones are not read
  int64_t total_bytes = int64_t{64} << 20;
};

// Looks at all formats; reads the values of tensors within the limits: scales that are NaN, infinite, negative or zero,
// vectors that are not finite, gate and up projections of one expert with different global scales.
Anomalies find_anomalies(const Safetensors& file, const AnomalyLimits& limits = {});

}  // namespace mettle
