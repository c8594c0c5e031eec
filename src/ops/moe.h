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
// Where one expert's p64 weights are, as a kernel reads it.
struct ExpertPointers {
  const uint8_t* gate_up = nullptr;
  const float* gate_up_scale = nullptr;
  const uint8_t* down = nullptr;
  const float* down_scale = nullptr;
};
struct MoeWeights {
  PackedMatrix router;  // p64 with a shared gate: its row follows the experts' rows
  std::vector<PackedExpert> experts;
  PackedExpert shared;
  PackedMatrix shared_gate;                      // tile16; p64 has it in router
  const ExpertPointers* pointers = nullptr;      // p64: [experts], where kernels can read it
  std::shared_ptr<const Buffer> pointer_memory;  // of pointers until placed
};
// p64: gate_up has the order kGateUp.
PackedExpert pack_expert(Layout layout, const RawExpert& raw);
void pack_router(Layout layout, const RawMoe& raw, MoeWeights& weights);  // and the shared gate
void point_at_experts(MoeWeights& weights);                               // p64: fills pointers in host memory
MoeWeights pack_moe(Layout layout, const RawMoe& raw);
PackedExpert place_expert(const PackedExpert& expert, Place& place);
// Experts are placed already, one at a time; this places the rest.
void place_moe(MoeWeights& weights, Place& place);

// What was selected. Given: the backend uses ids and weights as they are; else it writes them.
struct Selection {
  bool given = false;
  int32_t* ids = nullptr;    // [rows, top_k], in order of descending score; given -1: padding, adds nothing
  float* weights = nullptr;  // [rows, top_k]; of padding it is not read
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
