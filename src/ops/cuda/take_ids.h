// Tokens of a step that was sampled, as the ids of the next: see BatchStage::take_ids.
#pragma once
#include <cstdint>

#include "ops/sample.h"

namespace mettle::cuda {

// ids [rows] on the device hold indices of results; `stream` is a cudaStream_t. Fails with kDevice in a build without
// CUDA.
void take_ids(int32_t* ids, const SampleResult* results, int rows, void* stream);

}  // namespace mettle::cuda
