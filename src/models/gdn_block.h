// Gated DeltaNet with its projections: weight list, state slots and call.
#pragma once
#include <string>

#include "models/block.h"

namespace mettle {

struct GdnShape {  // of the whole model
  int key_heads = 0, value_heads = 0, dk = 0, dv = 0, conv = 4;
};

class GdnBlock {
 public:
  // module: "model.layers.0.linear_attn". Reads formats only.
  GdnBlock(const GdnShape& shape, const BlockContext& context, std::string module, WeightReader& plan);

  const GdnProblem& problem() const { return problem_; }
  void add_caches(int layer, std::vector<CacheEntry>& caches);
  void add_bytes(WeightBytes& bytes) const;
  void choose(ChoiceSource& choices) { choices_ = choices.choose(problem_); }
  const Choices<GdnOp>& choices() const { return choices_; }
  size_t workspace(const StepLimits& limits) const;
  void load(WeightReader& reader, Place& place);
  void run(const Batch& batch, const TensorView& x, std::span<const TensorView> caches, const TensorView& partial,
           Workspace ws, Stream& stream) const;

 private:
  RawGdn read(WeightReader& reader) const;

  GdnShape shape_;
  BlockContext context_;
  std::string module_;
  HeadCut cut_;
  GdnProblem problem_;
  Choices<GdnOp> choices_;
  GdnWeights weights_;
  WeightBytes bytes_;
  size_t first_cache_ = 0;
};

}  // namespace mettle
