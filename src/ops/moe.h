// moe: route, experts, combine, shared expert. Formulas: Qwen3-MoE, Qwen3.5-MoE (see docs/ops.md).
//   l = x Wr^T;  top_k of l, lowest id on ties;  w = softmax over all (renormalise: over the selected ones)
//   y_e = Wd (silu(Wg x) * (Wu x));  partial = sum_e w_e y_e + sigmoid(x . ws) * shared(x)
// Rows of gate_up: all of gate, then all of up. With several ranks each holds a slice of every expert's width (and of
// the shared expert's) and partial is the rank's share.
#pragma once
#include "ops/backend.h"
#include "tensor/tensor_view.h"

namespace mettle {

struct MoeProblem {
  int hidden = 0, experts = 0, top_k = 0;
  int width = 0;                                      // of a routed expert on this rank
  int shared_width = 0;                               // of the shared expert on this rank; 0: there is none
  bool shared_gate = false;                           // the shared expert is multiplied with sigmoid(x . shared_gate)
  bool renormalise = true;                            // weights divided by their sum over the selected
  WeightFormat format = WeightFormat::kNvfp4;         // routed experts
  WeightFormat shared_format = WeightFormat::kNvfp4;  // shared expert
  WeightFormat router_format = WeightFormat::kBf16;   // router and shared gate
  Activation activation = Activation::kBf16;
  std::string text() const;  // one line; keys every cache
  bool operator==(const MoeProblem&) const = default;
};

struct RawExpert {
  RawSegments gate_up;  // [2 * width, hidden]
  RawSegments down;     // [hidden, width]
};
struct RawMoe {
  RawSegments router;  // [experts, hidden]
  std::vector<RawExpert> experts;
  RawExpert shared;         // empty when there is none
  RawSegments shared_gate;  // [1, hidden] or empty
};

struct PackedExpert {
  PackedMatrix gate_up, down;
};
struct MoeWeights {
  PackedMatrix router;
  std::vector<PackedExpert> experts;
  PackedExpert shared;
  PackedMatrix shared_gate;
};
PackedExpert pack_expert(const RawExpert& raw);
MoeWeights pack_moe(const RawMoe& raw);

// What was selected. Given: the backend uses ids and weights as they are; else it writes them.
struct Selection {
  bool given = false;
  int32_t* ids = nullptr;    // [rows, top_k], in order of descending score
  float* weights = nullptr;  // [rows, top_k]
};

struct MoeArgs {
  MoeProblem problem;
  int rows = 0;
  TensorView x;  // [rows, hidden] activation dtype
  const MoeWeights* weights = nullptr;
  TensorView partial;   // out [rows, hidden] f32
  Selection selection;  // always present
  Workspace ws;
};

struct MoeOp {
  static constexpr std::string_view kName = "moe";
  using Problem = MoeProblem;
  using Args = MoeArgs;
};
void check_args(const MoeArgs& args);  // fails with kInternal when shapes or dtypes do not fit the problem

}  // namespace mettle
