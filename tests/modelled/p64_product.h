#pragma once
#include <cstdint>

#include "ops/packed.h"

namespace modelled {

// y = x W^T of a p64 matrix, in plain code.
void p64_product(const mettle::PackedMatrix& w, const uint16_t* x, int rows, float* y);

}  // namespace modelled
