// embed: token ids -> residual rows, float32.
#pragma once
#include "ops/backend.h"
#include "tensor/tensor_view.h"

namespace mettle {

struct EmbedProblem {
  int vocab = 0, hidden = 0;
  std::string text() const;
  bool operator==(const EmbedProblem&) const = default;
};

struct EmbedArgs {
  EmbedProblem problem;
  int rows = 0;
  const int32_t* ids = nullptr;         // [rows], each in 0..vocab-1; in host memory
  TensorView table;                     // [vocab, hidden] bf16
  TensorView residual;                  // out [rows, hidden] f32
  const int32_t* device_ids = nullptr;  // the same on a GPU
};

struct EmbedOp {
  static constexpr std::string_view kName = "embed";
  using Problem = EmbedProblem;
  using Args = EmbedArgs;
};
void check_args(const EmbedArgs& args);

}  // namespace mettle
