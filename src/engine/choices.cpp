#include "engine/choices.h"

#include <fmt/format.h>

#include <algorithm>

namespace mettle {
namespace {

template <class Op>
std::string describe(const Choices<Op>& choices) {
  const auto name = [](const Choice<Op>& c) { return fmt::format("{}/{}", c.backend->name, c.tactic.name); };
  std::string text = name(choices.by_bucket[0]), last = text;
  for (size_t b = 1; b < choices.by_bucket.size(); ++b) {
    const std::string next = name(choices.by_bucket[b]);
    if (next == last) continue;
    text += fmt::format(" up to {} rows, then {}", kRowBuckets[b - 1], next);
    last = next;
  }
  return text;
}

}  // namespace

template <class Op>
Choices<Op> EngineChoices::ask(const typename Op::Problem& problem) {
  Choices<Op> choices = inner_.choose(problem);
  if (deterministic_) {
    choices.by_bucket.fill(Choice<Op>(choices.by_bucket[0]));
    const Backend<Op>& backend = *choices.by_bucket[0].backend;
    if (!backend.numerics.deterministic)
      fail(Code::kUnsupported, fmt::format("{}: --deterministic needs a backend that repeats itself bit for bit, {} "
                                           "does not say so",
                                           problem.text(), backend.name));
  }
  const std::pair<std::string, std::string> line{problem.text(), describe(choices)};
  if (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) lines_.push_back(line);
  return choices;
}

std::string EngineChoices::text() const {
  std::string text;
  for (const auto& [problem, backends] : lines_) text += fmt::format("  {}: {}\n", problem, backends);
  return text;
}

template Choices<EmbedOp> EngineChoices::ask<EmbedOp>(const EmbedProblem&);
template Choices<JoinOp> EngineChoices::ask<JoinOp>(const JoinProblem&);
template Choices<LinearOp> EngineChoices::ask<LinearOp>(const LinearProblem&);
template Choices<MoeOp> EngineChoices::ask<MoeOp>(const MoeProblem&);
template Choices<AttentionOp> EngineChoices::ask<AttentionOp>(const AttentionProblem&);
template Choices<GdnOp> EngineChoices::ask<GdnOp>(const GdnProblem&);
template Choices<SampleOp> EngineChoices::ask<SampleOp>(const SampleProblem&);

}  // namespace mettle
