// Who decides which backend serves a problem. The engine answers from proofs; a model only asks.
#pragma once
#include "ops/dispatch.h"

namespace mettle {

class ChoiceSource {
 public:
  virtual ~ChoiceSource() = default;
  virtual Choices<EmbedOp> choose(const EmbedProblem& problem) = 0;
  virtual Choices<JoinOp> choose(const JoinProblem& problem) = 0;
  virtual Choices<LinearOp> choose(const LinearProblem& problem) = 0;
  virtual Choices<MoeOp> choose(const MoeProblem& problem) = 0;
  virtual Choices<AttentionOp> choose(const AttentionProblem& problem) = 0;
  virtual Choices<GdnOp> choose(const GdnProblem& problem) = 0;
  virtual Choices<SampleOp> choose(const SampleProblem& problem) = 0;
};

}  // namespace mettle
