// Weights of a p64 matrix as float32, host and device: the plain way to read them. Layout: ops/packed.h.
#pragma once
#include <cstdint>
#include <cstring>

#include "ops/cuda/device/p64.cuh"
#include "tensor/weight.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif
#if defined(__CUDA_ARCH__)
#define METTLE_UNROLL _Pragma("unroll")
#else
#define METTLE_UNROLL
#endif

namespace mettle::p64 {

// A p64 matrix as a kernel takes it.
struct Matrix {
  WeightFormat format = WeightFormat::kBf16;
  bool gate_up = false;  // packed with RowOrder::kGateUp
  int rows = 0, cols = 0, tiles = 0, units = 0, unit_tiles = 0;
  int64_t unit_bytes = 0;
  const uint8_t* data = nullptr;
  const float* row_scale = nullptr;  // [tiles * 16], packed rows
};

// Matrix row that a packed row holds; at least m.rows where it is padding.
METTLE_HD int matrix_row(const Matrix& m, int packed) {
  if (!m.gate_up) return packed;
  const int in_tile = packed % 16;
  return packed / 16 * 8 + in_tile % 8 + (in_tile < 8 ? 0 : m.rows / 2);
}

struct alignas(16) Words {
  uint32_t w[4];
};
METTLE_HD Words load_words(const uint8_t* p) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const Words*>(p);
#else
  Words words;
  std::memcpy(&words, p, sizeof words);
  return words;
#endif
}

// bf16 in the low (0) or high (1) half of a pair.
METTLE_HD float half_of(uint32_t pair, int half) {
  const uint32_t bits = half == 0 ? pair << 16 : pair & 0xFFFF0000u;
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// A lane's share of a tile of 16 packed rows x 64 k: w[q][i] is the weight of row g + 8 q at k = 16 t + i of the tile,
// g = lane / 4, t = lane % 4, before row_scale; exact. The lanes of a warp read 16 bytes each, side by side.
struct LaneWeights {
  float w[2][16];
};
METTLE_HD LaneWeights lane_weights(const Matrix& m, int tile, int k_tile, int lane) {
  LaneWeights out;
  const uint8_t* unit = m.data + (int64_t{tile} * m.units + k_tile / m.unit_tiles) * m.unit_bytes;
  const int in_unit = k_tile % m.unit_tiles;
  if (m.format == WeightFormat::kNvfp4) {
    const Words codes = load_words(unit + in_unit * 512 + lane * 16);
    const uint8_t* scales = unit + 512 * m.unit_tiles + (lane * m.unit_tiles + in_unit) * 2;
    // Codes stand at value * 2^-126, scales at value * 2^119; both are exact, so is the product.
    const float scale[2] = {half_of(decode_scale(scales[0]), 0), half_of(decode_scale(scales[1]), 0)};
    METTLE_UNROLL
    for (int j = 0; j < 4; ++j) {
      uint32_t pairs[4];
      decode_codes(codes.w[j], pairs);
      METTLE_UNROLL
      for (int i = 0; i < 8; ++i)
        out.w[i / 2 % 2][4 * j + i / 4 * 2 + i % 2] = half_of(pairs[i / 2], i % 2) * scale[i / 2 % 2] * kNvfp4Out;
    }
  } else if (m.format == WeightFormat::kFp8) {
    METTLE_UNROLL
    for (int jj = 0; jj < 2; ++jj) {
      const Words bytes = load_words(unit + ((in_unit * 2 + jj) * 32 + lane) * 16);
      METTLE_UNROLL
      for (int i = 0; i < 4; ++i) {  // pairs of k, ascending
        uint32_t pair[2];
        decode_fp8(bytes.w[i], &pair[0], &pair[1]);
        METTLE_UNROLL
        for (int q = 0; q < 2; ++q) METTLE_UNROLL
        for (int half = 0; half < 2; ++half) out.w[q][8 * jj + 2 * i + half] = half_of(pair[q], half) * 0x1p120f;
      }
    }
  } else {
    METTLE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const Words values = load_words(unit + ((in_unit * 4 + j) * 32 + lane) * 16);
      METTLE_UNROLL
      for (int i = 0; i < 8; ++i) out.w[i / 2 % 2][4 * j + i / 4 * 2 + i % 2] = half_of(values.w[i / 2], i % 2);
    }
  }
  return out;
}

}  // namespace mettle::p64
