// y = x W^T for any p64 matrix and any number of rows: what linear does, and what attention, gdn and moe need for their
// projections. Picks the kernel by the number of rows. Only enqueues; needs no workspace.
#pragma once
#include <cstdint>

#include "ops/packed.h"

struct CUstream_st;

namespace mettle::cuda {

// x [rows, w.cols] bf16, y [rows, w.rows] float32 with row_scale applied; columns of y stand in packed order (plain
// order: the order of the matrix). Its kernels start early and wait for the kernel before them by themselves; every
// kernel ahead on the stream may thus still run when the weights are asked for.
void product(const PackedMatrix& w, const uint16_t* x, int rows, float* y, CUstream_st* stream);

}  // namespace mettle::cuda
