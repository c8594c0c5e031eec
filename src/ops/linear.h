// linear: y = x W^T (times the row scale), float32 out. Serves the output head; attention, gdn and moe contain theirs.
#pragma once
#include "ops/backend.h"
#include "tensor/tensor_view.h"

namespace mettle {

struct LinearProblem {
  int in = 0, out = 0;
  WeightFormat format = WeightFormat::kBf16;
  Activation activation = Activation::kBf16;
  std::string text() const;
  bool operator==(const LinearProblem&) const = default;
};

struct LinearArgs {
  LinearProblem problem;
  int rows = 0;
  TensorView x;  // [rows, in] activation dtype
  const PackedMatrix* weight = nullptr;
  TensorView y;  // out [rows, out] f32
  Workspace ws;
};

struct LinearOp {
  static constexpr std::string_view kName = "linear";
  using Problem = LinearProblem;
  using Args = LinearArgs;
};
void check_args(const LinearArgs& args);

}  // namespace mettle
