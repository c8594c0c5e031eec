#pragma once
#include "cuda_runtime.h"
#include "ops/packed.h"

namespace mettle::cuda {

void product(const PackedMatrix& w, const uint16_t* x, int rows, float* y, cudaStream_t stream);

}  // namespace mettle::cuda
