// join: the seam between two layer steps. residual += sum over ranks of the pending partials (in rank order);
// x = residual * rsqrt(mean(residual^2) + eps) * (w or 1 + w), the product formed in float32, rounded once.
#pragma once
#include "ops/backend.h"
#include "tensor/tensor_view.h"

namespace mettle {

struct JoinProblem {
  int hidden = 0;
  int ranks = 1;          // pending partials: 0 before the first step, else the number of ranks
  bool plus_one = false;  // the weight is 1 + w
  float eps = 1e-6f;
  Activation activation = Activation::kBf16;
  std::string text() const;
  bool operator==(const JoinProblem&) const = default;
};

struct JoinArgs {
  JoinProblem problem;
  int rows = 0;
  TensorView residual;                     // in/out [rows, hidden] f32
  std::span<const float* const> partials;  // ranks pointers to [rows, hidden] f32
  const float* weight = nullptr;           // [hidden]
  TensorView x;                            // out [rows, hidden] activation dtype
};

struct JoinOp {
  static constexpr std::string_view kName = "join";
  using Problem = JoinProblem;
  using Args = JoinArgs;
};
void check_args(const JoinArgs& args);

}  // namespace mettle
