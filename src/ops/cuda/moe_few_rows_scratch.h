// What a pass of moe_few_rows keeps between its kernels.
#pragma once
#include <cstdint>

#include "ops/cuda/moe_few_rows.h"

namespace mettle::cuda {

constexpr int kMoeFusedRows = 2;  // up to here down and combine are one kernel: the products of all slots fit one pass

// Which experts are active and which rows each takes. A slot is an active expert, in id order; its rows are the bits of
// mask, in row order. position = index among all (row, choice) pairs, grouped by slot.
struct alignas(16) MoeSlot {
  ExpertPointers weights;
  uint32_t mask = 0;
  int32_t begin = 0;  // position of its first row
};
struct MoeSchedule {
  MoeSlot slot[kMaxExperts];              // those behind the active ones have mask 0
  int32_t position[kFewRows * kMaxTopK];  // by row * top_k + choice; -1: padding
};

struct MoeScratch {
  float* logits = nullptr;        // [rows, experts (+ 1)]
  float* shared_scale = nullptr;  // [rows]
  MoeSchedule* schedule = nullptr;
  uint16_t* h = nullptr;      // [rows * top_k, width] bf16 by position, then [rows, width] of a riding shared expert
  float* products = nullptr;  // [rows * top_k + rows, hidden]: expert outputs by position, then the shared expert's
  float* shared_gate_up = nullptr;  // of a shared expert that does not ride: [rows, 2 * shared_width], packed order
  uint16_t* shared_h = nullptr;     // [rows, shared_width]
};

// The shared expert is a slot like the others.
inline bool shared_rides(const MoeProblem& p) { return p.shared_width == p.width && p.shared_format == p.format; }

// `data` null: only the size.
inline MoeScratch carve_moe_few_rows(const MoeProblem& p, int rows, uint8_t* data, size_t* bytes = nullptr) {
  size_t used = 0;
  const auto take = [&](int64_t n) -> void* {
    uint8_t* at = data == nullptr ? nullptr : data + used;
    used += (static_cast<size_t>(n) + 255) / 256 * 256;
    return at;
  };
  const bool joins = p.shared_width > 0 && !shared_rides(p);
  const int64_t n = rows, pairs = n * (p.top_k + 1);
  MoeScratch s;
  s.logits = static_cast<float*>(take(n * (p.experts + 1) * 4));
  s.shared_scale = static_cast<float*>(take(n * 4));
  s.schedule = static_cast<MoeSchedule*>(take(sizeof(MoeSchedule)));
  s.h = static_cast<uint16_t*>(take(pairs * p.width * 2));
  s.products = static_cast<float*>(take(rows > kMoeFusedRows || joins ? pairs * p.hidden * 4 : 0));
  s.shared_gate_up = static_cast<float*>(take(joins ? n * 2 * p.shared_width * 4 : 0));
  s.shared_h = static_cast<uint16_t*>(take(joins ? n * p.shared_width * 2 : 0));
  if (bytes != nullptr) *bytes = used;
  return s;
}

}  // namespace mettle::cuda
