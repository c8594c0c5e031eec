// The backends that will serve, from proofs, with what the engine's options add; remembers what was chosen.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "models/choice_source.h"

namespace mettle {

// Passes each question on, writes down the answer. Deterministic: the answer for one row serves every row count, and
// a backend that does not repeat itself bit for bit is refused.
class EngineChoices : public ChoiceSource {
 public:
  EngineChoices(ChoiceSource& inner, bool deterministic) : inner_(inner), deterministic_(deterministic) {}

  Choices<EmbedOp> choose(const EmbedProblem& problem) override { return ask<EmbedOp>(problem); }
  Choices<JoinOp> choose(const JoinProblem& problem) override { return ask<JoinOp>(problem); }
  Choices<LinearOp> choose(const LinearProblem& problem) override { return ask<LinearOp>(problem); }
  Choices<MoeOp> choose(const MoeProblem& problem) override { return ask<MoeOp>(problem); }
  Choices<AttentionOp> choose(const AttentionProblem& problem) override { return ask<AttentionOp>(problem); }
  Choices<GdnOp> choose(const GdnProblem& problem) override { return ask<GdnOp>(problem); }
  Choices<SampleOp> choose(const SampleProblem& problem) override { return ask<SampleOp>(problem); }

  // One line per problem: "moe h256 ...: cpu_gemv/avx512 up to 4 rows, then cpu_gemm/avx512".
  std::string text() const;

 private:
  template <class Op>
  Choices<Op> ask(const typename Op::Problem& problem);

  ChoiceSource& inner_;
  bool deterministic_;
  std::vector<std::pair<std::string, std::string>> lines_;  // problem, what serves it
};

// choose() over a proof report; backend names of the options restrict their op.
std::unique_ptr<ChoiceSource> proved_choices(const ProofReport& report, const EngineOptions& options);

}  // namespace mettle
