#include "p64_product.h"

#include <algorithm>

#include "ops/cuda/device/p64_element.cuh"

namespace modelled {

void p64_product(const mettle::PackedMatrix& w, const uint16_t* x, int rows, float* y) {
  const mettle::p64::Matrix m{.format = w.format,
                              .rows = static_cast<int>(w.rows),
                              .cols = static_cast<int>(w.cols),
                              .units = w.units,
                              .unit_tiles = w.unit_tiles,
                              .unit_bytes = w.unit_bytes,
                              .data = w.data};
  std::fill_n(y, rows * w.rows, 0.f);
  for (int tile = 0; tile < static_cast<int>(w.tiles); ++tile)
    for (int lane = 0; lane < 32; ++lane)
      for (int k_tile = 0; k_tile * 64 < m.cols; ++k_tile) {
        const int k = k_tile * 64 + lane % 4 * 16;
        if (k >= m.cols) continue;
        const mettle::p64::LaneWeights share = mettle::p64::lane_weights(m, tile, k_tile, lane);
        for (int q = 0; q < 2; ++q) {
          const int at = tile * 16 + lane / 4 + 8 * q;
          for (int row = 0; row < rows && at < m.rows; ++row)
            for (int i = 0; i < 16; ++i)
              y[row * m.rows + at] +=
                  share.w[q][i] * w.row_scale[at] * mettle::p64::half_of(x[row * m.cols + k + i], 0);
        }
      }
}

}  // namespace modelled
