// Mixture of experts with its router and shared expert: weight list and call. Experts are found one by one or fused
// per layer, as the checkpoint has them.
#pragma once
#include <string>

#include "models/block.h"

namespace mettle {

struct MoeShape {  // of the whole model
  int experts = 0, top_k = 0, width = 0, shared_width = 0;
  bool renormalise = true;
};

class MoeBlock {
 public:
  // module: "model.layers.0.mlp". Reads formats only.
  MoeBlock(const MoeShape& shape, const BlockContext& context, std::string module, WeightReader& plan);

  const MoeProblem& problem() const { return problem_; }
  void add_bytes(WeightBytes& bytes) const;
  void choose(ChoiceSource& choices) { choices_ = choices.choose(problem_); }
  const Choices<MoeOp>& choices() const { return choices_; }
  size_t workspace(const StepLimits& limits) const;
  void load(WeightReader& reader, Place& place);
  void run(const TensorView& x, const TensorView& partial, Selection selection, Workspace ws, Stream& stream) const;

 private:
  enum class Names { kPerExpert, kFused };
  RawExpert read_expert(WeightReader& reader, int expert, const RawExpert& fused) const;
  RawExpert read_fused(WeightReader& reader) const;  // all experts stacked; empty when they stand one by one
  RawExpert read_shared(WeightReader& reader) const;
  RawSegments read_router(WeightReader& reader) const;
  RawSegments read_shared_gate(WeightReader& reader) const;
  WeightFormat format_of_expert(const RawExpert& raw) const;

  MoeShape shape_;
  BlockContext context_;
  std::string module_;
  Names names_ = Names::kPerExpert;
  Range width_, shared_width_;
  MoeProblem problem_;
  Choices<MoeOp> choices_;
  MoeWeights weights_;
  WeightBytes bytes_;
};

}  // namespace mettle
