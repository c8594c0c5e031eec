// Rows of a BF16 router as the kernels of few rows take them: two of a tile, 8 apart, and 4 k of both at a time, as
// they lie in one 16-byte piece of p64.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/device/ptx.cuh"
#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/p64_view.h"

namespace mettle::cuda {

// Pair p: tile p / 8, rows p % 8 and 8 more. So many have a row that is there.
inline int router_pairs(int64_t rows) { return static_cast<int>(rows / 16 * 8 + (rows % 16 < 8 ? rows % 16 : 8)); }

// k of piece p: p / 16 * 64 + p % 4 * 16 + p / 4 % 4 * 4 and on.
__device__ __forceinline__ uint4 router_piece(const P64View& router, int pair, int piece, bool ok) {
  const int64_t at = int64_t{pair / 8} * router.units * p64::Bf16Stream::kBytes;
  return ptx::load_weight(router.payload + at + piece / 4 * 512 + (pair % 8 * 4 + piece % 4) * 16, ok);
}
// Asked for with the pieces: at the end of a sum it would add its whole latency.
__device__ __forceinline__ float2 router_scale(const P64View& router, int pair, bool ok) {
  const float* scale = router.row_scale + pair / 8 * 16 + pair % 8;
  return ok ? make_float2(scale[0], scale[8]) : make_float2(0, 0);
}
__device__ __forceinline__ float2 both(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

}  // namespace mettle::cuda
