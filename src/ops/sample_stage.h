// Sampling parameters as a GPU reads them, and the results it writes: in memory that host and device share.
#pragma once
#include <span>

#include "ops/sample.h"
#include "tensor/place.h"

namespace mettle {

class SampleStage {
 public:
  SampleStage(int rows, Place& place);
  // Valid until the next fill. Takes more shared memory when counts and biases do not fit.
  const DeviceSample& fill(std::span<const SampleRow> rows);
  std::span<SampleResult> results(size_t rows) { return {results_, rows}; }

 private:
  Place& place_;
  int rows_;
  DeviceSampleRow* params_ = nullptr;
  TokenCount* counts_ = nullptr;
  TokenBias* biases_ = nullptr;
  SampleResult* results_ = nullptr;
  size_t count_room_ = 0, bias_room_ = 0;
  DeviceSample sample_;
};

}  // namespace mettle
