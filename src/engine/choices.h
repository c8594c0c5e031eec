// The backends that serve, from proofs, with what the engine's options add; remembers what was chosen, and replaces a
// backend while it serves.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "models/choice_source.h"

namespace mettle {

using RowBuckets = std::array<bool, kRowBuckets.size()>;

// What --deterministic asks of choices: backends that repeat themselves bit for bit, and that the rows of a step change
// none: one choice for every row count, or steps that always have as many rows (a GPU's, see GpuStep).
enum class Repeats : uint8_t { kNotAsked, kOneChoice, kOneShape };

// Asks about each problem once and remembers the answer.
class EngineChoices : public ChoiceSource {
 public:
  EngineChoices(std::shared_ptr<ChoiceSource> inner, Repeats repeats) : inner_(std::move(inner)), repeats_(repeats) {}

  Choices<EmbedOp> choose(const EmbedProblem& problem) override { return ask<EmbedOp>(problem); }
  Choices<JoinOp> choose(const JoinProblem& problem) override { return ask<JoinOp>(problem); }
  Choices<LinearOp> choose(const LinearProblem& problem) override { return ask<LinearOp>(problem); }
  Choices<MoeOp> choose(const MoeProblem& problem) override { return ask<MoeOp>(problem); }
  Choices<AttentionOp> choose(const AttentionProblem& problem) override { return ask<AttentionOp>(problem); }
  Choices<GdnOp> choose(const GdnProblem& problem) override { return ask<GdnOp>(problem); }
  Choices<SampleOp> choose(const SampleProblem& problem) override { return ask<SampleOp>(problem); }
  // Every problem was asked about: from now on there are no others.
  void close() { inner_ = nullptr; }

  // Takes a backend of an op out of every answer. Returns the row buckets in which another serves now; nothing, with
  // nothing changed, when it was the last one anywhere.
  std::optional<RowBuckets> remove(std::string_view op, std::string_view backend);
  // Before and after a removal that is not to last.
  template <class Op>
  using Answers = std::vector<std::pair<typename Op::Problem, Choices<Op>>>;
  using Everything = std::tuple<Answers<EmbedOp>, Answers<JoinOp>, Answers<LinearOp>, Answers<MoeOp>,
                                Answers<AttentionOp>, Answers<GdnOp>, Answers<SampleOp>>;
  const Everything& everything() const { return all_; }
  void restore(Everything before) { all_ = std::move(before); }

  std::vector<ServedProblem> served() const;
  // One line per problem: "moe h256 ...: cpu_gemv/avx512 up to 4 rows, then cpu_gemm/avx512".
  std::string text() const;

 private:
  template <class Op>
  Choices<Op> ask(const typename Op::Problem& problem);

  std::shared_ptr<ChoiceSource> inner_;
  Repeats repeats_;
  Everything all_;
};

// choose() over a proof report; backend names of the options restrict their op. Both must outlive it.
std::shared_ptr<ChoiceSource> proved_choices(const ProofReport& report, const EngineOptions& options);

}  // namespace mettle
