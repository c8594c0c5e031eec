// Device side of attention's reference: qkv product, norm + rotary + append, attention with a running maximum, gate,
// output product. Which warp takes which key depends on its absolute position alone, so the borders of prefill chunks
// and the rows beside a row do not change its result.
#pragma once
#include "ops/attention.h"
#include "ops/cuda/reference_product.h"

namespace mettle::cuda {

inline constexpr int kReferenceHeadDim = 256;  // the largest

struct AttentionReference {
  AttentionProblem problem;
  DeviceBatch batch;
  p64::Matrix qkv, out;
  const float *q_norm = nullptr, *k_norm = nullptr, *inv_freq = nullptr;
  const uint16_t* x = nullptr;
  void *k_cache = nullptr, *v_cache = nullptr;  // bf16, or E4M3 codes of these scales
  float k_scale = 1, v_scale = 1;
  float* partial = nullptr;
  // Scratch.
  float* rows = nullptr;     // [rows, qkv_rows]
  uint16_t* core = nullptr;  // [rows, heads * head_dim] bf16
};

void attention_reference(const AttentionReference& a, void* stream);

}  // namespace mettle::cuda
