#include "engine/choices.h"

namespace mettle {
namespace {

class ProvedChoices : public ChoiceSource {
 public:
  ProvedChoices(const ProofReport& report, const EngineOptions& options) : report_(report), options_(options) {}

  Choices<EmbedOp> choose(const EmbedProblem& problem) override { return mettle::choose(report_, problem); }
  Choices<JoinOp> choose(const JoinProblem& problem) override { return mettle::choose(report_, problem); }
  Choices<SampleOp> choose(const SampleProblem& problem) override { return mettle::choose(report_, problem); }
  Choices<LinearOp> choose(const LinearProblem& problem) override {
    return mettle::choose(report_, problem, options_.linear_backend);
  }
  Choices<MoeOp> choose(const MoeProblem& problem) override {
    return mettle::choose(report_, problem, options_.moe_backend);
  }
  Choices<AttentionOp> choose(const AttentionProblem& problem) override {
    return mettle::choose(report_, problem, options_.attention_backend);
  }
  Choices<GdnOp> choose(const GdnProblem& problem) override {
    return mettle::choose(report_, problem, options_.gdn_backend);
  }

 private:
  const ProofReport& report_;
  const EngineOptions& options_;
};

}  // namespace

std::shared_ptr<ChoiceSource> proved_choices(const ProofReport& report, const EngineOptions& options) {
  return std::make_shared<ProvedChoices>(report, options);
}

}  // namespace mettle
