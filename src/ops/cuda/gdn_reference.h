// Device side of gdn's reference: projections, convolution with its history, L2 norms, the delta rule row by row on the
// float32 state, gated norm, output product. A thread owns one column of a head's state, so nothing is shared.
#pragma once
#include "ops/cuda/reference_product.h"
#include "ops/gdn.h"

namespace mettle::cuda {

struct GdnReference {
  GdnProblem problem;
  DeviceBatch batch;
  p64::Matrix qkv, z, ba, out;
  const float *conv = nullptr, *a_log = nullptr, *dt_bias = nullptr, *norm = nullptr;
  const uint16_t* x = nullptr;
  float *conv_state = nullptr, *state = nullptr;
  float* partial = nullptr;
  // Scratch, [rows, ...] each.
  float* qkv_rows = nullptr;   // [channels]
  float* z_rows = nullptr;     // [value_heads * dv]
  float* ba_rows = nullptr;    // [2 * value_heads]
  float* conv_rows = nullptr;  // [channels] after silu; q and k normalised in place
  float* read_rows = nullptr;  // [value_heads * dv]: o
  uint16_t* core = nullptr;    // [value_heads * dv] bf16
};

void gdn_reference(const GdnReference& a, void* stream);

}  // namespace mettle::cuda
