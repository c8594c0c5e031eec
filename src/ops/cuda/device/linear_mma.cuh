// The kernel behind linear_{nvfp4,fp8,bf16}_mma. One CTA of 8 warps: 8 / SPLIT tile rows, SPLIT warps share one along
// k.
#pragma once
#include <algorithm>

#include "ops/cuda/device/weight_stream.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/linear_mma.h"

namespace mettle::cuda {

template <class W, int NT, int SPLIT, bool MANY>
__global__ __launch_bounds__(256, p64::stream_blocks(NT, MANY)) void linear_mma_kernel(P64View w, const uint16_t* x,
                                                                                       float* y, int rows) {
  constexpr int kTileRows = 8 / SPLIT;
  __shared__ float4 partial[8][NT][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = warp % SPLIT, tile = blockIdx.x * kTileRows + warp / SPLIT;
  const bool active = tile < w.tiles;
  const int first = blockIdx.y * 8 * NT;  // row of this pass
  ptx::trigger();
  // Asked for now, needed last: a load at the end would add its whole latency.
  const int row0 = tile * 16 + g;
  const float scale0 = active ? w.row_scale[row0] * W::kOut : 0.f,
              scale1 = active ? w.row_scale[row0 + 8] * W::kOut : 0.f;

  float c[NT][4] = {};
  const uint16_t* row[NT];
  bool ok[NT];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    ok[n] = active && first + g + 8 * n < rows;
    row[n] = x + int64_t{first + g + 8 * n} * w.cols;
  }
  p64::stream_tile_row<W, NT, MANY, 4 / NT>(c, w.payload + int64_t{tile} * w.units * W::kBytes, w.units, part, SPLIT,
                                            w.cols, row, ok, lane, active, true);

  if constexpr (SPLIT > 1) {
#pragma unroll
    for (int n = 0; n < NT; ++n) partial[warp][n][lane] = make_float4(c[n][0], c[n][1], c[n][2], c[n][3]);
    __syncthreads();
    if (part != 0) return;
#pragma unroll
    for (int n = 0; n < NT; ++n)
      for (int p = 1; p < SPLIT; ++p) {
        const float4 v = partial[warp + p][n][lane];
        c[n][0] += v.x, c[n][1] += v.y, c[n][2] += v.z, c[n][3] += v.w;
      }
  }
  if (!active) return;
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int m = first + 8 * n + 2 * t + (q & 1), r = row0 + 8 * (q >> 1);
      if (m < rows && r < w.rows) y[int64_t{m} * w.rows + r] = c[n][q] * (q < 2 ? scale0 : scale1);
    }
}

template <class W, int NT>
void launch_linear_mma(const LinearMmaArgs& a) {
  const int units = a.weight.units;
  const auto go = [&](auto split) {
    constexpr int kSplit = decltype(split)::value;
    const dim3 grid(static_cast<unsigned>((a.weight.tiles + 8 / kSplit - 1) / (8 / kSplit)),
                    static_cast<unsigned>((a.rows + 8 * NT - 1) / (8 * NT)));
    const auto kernel =
        units > kSplit ? linear_mma_kernel<W, NT, kSplit, true> : linear_mma_kernel<W, NT, kSplit, false>;
    launch({.grid = grid, .block = dim3(256), .stream = a.stream}, kernel, a.weight, a.x, a.y, a.rows);
  };
  // One unit per warp where k is long enough.
  if (units > 4) return go(std::integral_constant<int, 8>{});
  if (units > 2) return go(std::integral_constant<int, 4>{});
  if (units == 2) return go(std::integral_constant<int, 2>{});
  go(std::integral_constant<int, 1>{});
}

// Passes of 32 rows decode a weight half as often as passes of 16; a narrow matrix has too few blocks for them.
constexpr int kWideTiles = 128;

template <class W>
void run_linear_mma(const LinearMmaArgs& a) {
  if (a.rows <= 8)
    launch_linear_mma<W, 1>(a);
  else if (a.rows <= 16 || a.weight.tiles * ((a.rows + 31) / 32) < kWideTiles)
    launch_linear_mma<W, 2>(a);
  else
    launch_linear_mma<W, 4>(a);
}

}  // namespace mettle::cuda
