// moe for few rows (1..32): router product (linear_bf16_mma), choice of experts (a single row: inside the next kernel),
// gate_up + SwiGLU, down, combine (one or two rows: one kernel). Each active expert's weights are read once whatever
// the routing. NVFP4 routed and shared experts in p64 layout (gate_up with RowOrder::kGateUp). Deterministic; a row's
// result does not depend on its neighbours.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/linear_mma.h"

namespace mettle::cuda {

constexpr int kFewRows = 32;  // a row is one bit of an expert's mask
constexpr int kMaxExperts = 512;
constexpr int kMaxTopK = 16;

// Experts of one layer, all of one shape: expert e's payload is payload + e * stride.
struct ExpertBank {
  P64View first;               // of expert 0
  int64_t payload_stride = 0;  // bytes
  int64_t scale_stride = 0;    // floats
};

// Which experts are active and which rows each takes; made by moe_choose. A slot is an active expert, in id order; its
// rows are the bits of mask, in row order. position = index among all (row, choice) pairs, grouped by slot.
struct alignas(16) MoeSlot {
  int32_t expert, begin;  // begin: position of its first row
  uint32_t mask;
  int32_t unused;
};
struct MoeSchedule {
  MoeSlot slot[kMaxExperts];              // those beyond `active` have mask 0
  int32_t position[kFewRows * kMaxTopK];  // by row * top_k + choice
  int32_t active = 0;
};

struct MoeFewRowsArgs {
  int rows = 0, hidden = 0, width = 0, experts = 0, top_k = 0;
  bool renormalise = true;
  bool has_shared = false, shared_gate = false;
  P64View router;  // bf16 [experts (+ 1 row: shared gate), hidden]
  ExpertBank gate_up, down;
  P64View shared_gate_up, shared_down;
  const uint16_t* x = nullptr;  // [rows, hidden] bf16
  float* partial = nullptr;     // out [rows, hidden]
  int32_t* ids = nullptr;       // out [rows, top_k]
  float* weights = nullptr;     // out [rows, top_k]
  // Scratch of moe_few_rows_scratch() bytes, 256-byte aligned.
  uint8_t* scratch = nullptr;
  cudaStream_t stream = nullptr;
  bool dependent = true;
};

int64_t moe_few_rows_scratch(const MoeFewRowsArgs& args);
void moe_few_rows(const MoeFewRowsArgs& args);

}  // namespace mettle::cuda
