// Device side of moe's reference: router product, choice, gate_up with SwiGLU, down with the sum over the choices.
// Every (row, choice) pair reads its expert by itself; a row depends on nothing but itself.
#pragma once
#include "ops/cuda/reference_product.h"
#include "ops/moe.h"

namespace mettle::cuda {

struct MoeReference {
  int rows = 0, hidden = 0, experts = 0, top_k = 0;
  bool renormalise = true, given = false;
  bool shared = false, shared_gate = false;
  p64::Matrix router;         // with the row of the shared gate after the experts' when there is one
  p64::Matrix gate_up, down;  // shape of every expert; data and scales are in `experts_at`
  p64::Matrix shared_gate_up, shared_down;
  const ExpertPointers* experts_at = nullptr;
  const uint16_t* x = nullptr;
  float* partial = nullptr;
  int32_t* ids = nullptr;
  float* weights = nullptr;
  // Scratch.
  float* logits = nullptr;       // [rows, router.rows]
  uint16_t* h = nullptr;         // [rows, top_k, down.cols] bf16
  uint16_t* shared_h = nullptr;  // [rows, shared_down.cols] bf16
};

void moe_reference(const MoeReference& a, void* stream);

}  // namespace mettle::cuda
