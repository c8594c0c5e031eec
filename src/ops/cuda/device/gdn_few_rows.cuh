// A product of at most 16 rows of x by one block, without shared memory for weights or x: see weight_stream.cuh.
#pragma once
#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/p64_view.h"

namespace mettle::cuda {

inline constexpr int kGdnWarps = 8;

// 8 / SPLIT tiles of 16 matrix rows; SPLIT warps share one along k and are summed in order.
template <class W, int NT, int SPLIT, bool MANY>
__device__ __forceinline__ void gdn_few_rows(const P64View& w, const uint16_t* x, float* y, int rows, int block,
                                             float4 (*partial)[NT][32]) {
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32), g = lane / 4,
            t = lane % 4;
  const int part = warp % SPLIT, tile = block * (kGdnWarps / SPLIT) + warp / SPLIT;
  const bool active = tile < w.tiles;
  const int row0 = tile * 16 + g;
  const float scale0 = active ? w.row_scale[row0] * W::kOut : 0.f,
              scale1 = active ? w.row_scale[row0 + 8] * W::kOut : 0.f;
  float c[NT][4] = {};
  const uint16_t* row[NT];
  bool ok[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    ok[n] = active && g + 8 * n < rows;
    row[n] = x + int64_t{g + 8 * n} * w.cols;
  }
  const uint8_t* payload = w.payload + int64_t{tile} * w.units * W::kBytes;
  if constexpr (MANY) {
    p64::stream_tile_row<W, NT, true>(c, payload, w.units, part, SPLIT, w.cols, row, ok, lane, active, true);
  } else {  // one after the other: one in all, but for the few blocks of ba
    for (int u = part; u < w.units; u += SPLIT)
      p64::stream_tile_row<W, NT, false>(c, payload, w.units, u, SPLIT, w.cols, row, ok, lane, active, true);
  }
#pragma unroll
  for (int n = 0; n < NT; ++n) partial[warp][n][lane] = make_float4(c[n][0], c[n][1], c[n][2], c[n][3]);
  __syncthreads();
  if (part != 0 || !active) return;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
#pragma unroll
    for (int p = 1; p < SPLIT; ++p) {
      const float4 v = partial[warp + p][n][lane];
      c[n][0] += v.x, c[n][1] += v.y, c[n][2] += v.z, c[n][3] += v.w;
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int m = 8 * n + 2 * t + (q & 1), r = row0 + 8 * (q >> 1);
      if (m < rows && r < w.rows) y[int64_t{m} * w.rows + r] = c[n][q] * (q < 2 ? scale0 : scale1);
    }
  }
}

}  // namespace mettle::cuda
