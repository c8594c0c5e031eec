// Softmax attention with its projections: weight list, caches and call.
#pragma once
#include <string>

#include "models/block.h"

namespace mettle {

struct AttentionShape {  // of the whole model
  int heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0;
  bool gate = false;
  double rope_theta = 10000;
};

class AttentionBlock {
 public:
  // module: "model.layers.3.self_attn". Reads formats only.
  AttentionBlock(const AttentionShape& shape, const BlockContext& context, std::string module, WeightReader& plan);

  const AttentionProblem& problem() const { return problem_; }
  void add_caches(int layer, std::vector<CacheEntry>& caches);
  // Of an E4M3 cache: whether the checkpoint has a scale of k and of v.
  bool has_scales() const { return has_scales_; }
  void add_bytes(WeightBytes& bytes) const;
  void choose(ChoiceSource& choices) { choices_ = choices.choose(problem_); }
  const Choices<AttentionOp>& choices() const { return choices_; }
  size_t workspace(const StepLimits& limits) const;
  void load(WeightReader& reader, Place& place);
  void run(const Batch& batch, const TensorView& x, std::span<const TensorView> caches, const TensorView& partial,
           Workspace ws, Stream& stream) const;

 private:
  RawAttention read(WeightReader& reader) const;
  float read_scale(WeightReader& reader, char of) const;

  AttentionShape shape_;
  BlockContext context_;
  std::string module_;
  HeadCut cut_;
  AttentionProblem problem_;
  Choices<AttentionOp> choices_;
  AttentionWeights weights_;
  WeightBytes bytes_;
  size_t first_cache_ = 0;
  bool has_scales_ = false;
};

}  // namespace mettle
