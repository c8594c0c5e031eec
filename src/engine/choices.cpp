#include "engine/choices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace mettle {
namespace {

template <class Op>
Served served(const Choice<Op>& choice) {
  return {std::string(choice.backend->name), choice.tactic.name};
}

template <class Op>
ServedProblem served(const typename Op::Problem& problem, const Choices<Op>& choices) {
  ServedProblem out{.op = std::string(Op::kName), .problem = problem.text()};
  for (size_t b = 0; b < kRowBuckets.size(); ++b) {
    out.by_bucket[b] = served(choices.by_bucket[b]);
    for (const Choice<Op>& next : choices.behind[b]) out.behind[b].push_back(served(next));
  }
  return out;
}

std::string describe(const ServedProblem& p) {
  const auto name = [](const Served& s) { return fmt::format("{}/{}", s.backend, s.tactic); };
  std::string text = name(p.by_bucket[0]), last = text;
  for (size_t b = 1; b < p.by_bucket.size(); ++b) {
    const std::string next = name(p.by_bucket[b]);
    if (next == last) continue;
    text += fmt::format(" up to {} rows, then {}", kRowBuckets[b - 1], next);
    last = next;
  }
  return text;
}

template <class Op>
void make_deterministic(const typename Op::Problem& problem, Choices<Op>& choices, bool one) {
  if (one) {
    choices.by_bucket.fill(Choice<Op>(choices.by_bucket[0]));
    choices.behind.fill(std::vector<Choice<Op>>(choices.behind[0]));
  }
  for (size_t b = 0; b < choices.by_bucket.size(); ++b) {
    const Backend<Op>& backend = *choices.by_bucket[b].backend;
    if (!backend.numerics.deterministic)
      fail(Code::kUnsupported, fmt::format("{}: --deterministic needs a backend that repeats itself bit for bit, {} "
                                           "does not say so",
                                           problem.text(), backend.name));
    std::erase_if(choices.behind[b], [](const Choice<Op>& c) { return !c.backend->numerics.deterministic; });
  }
}

}  // namespace

template <class Op>
Choices<Op> EngineChoices::ask(const typename Op::Problem& problem) {
  Answers<Op>& answers = std::get<Answers<Op>>(all_);
  for (const auto& [known, choices] : answers)
    if (known == problem) return choices;
  CHECK(inner_ != nullptr, "a problem that was not planned: " + problem.text());
  Choices<Op> choices = inner_->choose(problem);
  if (repeats_ != Repeats::kNotAsked) make_deterministic(problem, choices, repeats_ == Repeats::kOneChoice);
  answers.emplace_back(problem, choices);
  return choices;
}

std::optional<RowBuckets> EngineChoices::remove(std::string_view op, std::string_view backend) {
  Everything without = all_;
  RowBuckets buckets{};
  bool possible = true;
  const auto from = [&]<class Op>(Answers<Op>& answers, std::type_identity<Op>) {
    if (Op::kName != op) return;
    for (auto& [problem, choices] : answers) {
      for (size_t b = 0; b < buckets.size(); ++b)
        buckets[b] = buckets[b] || choices.by_bucket[b].backend->name == backend;
      possible = possible && choices.remove(backend);
    }
  };
  from(std::get<Answers<EmbedOp>>(without), std::type_identity<EmbedOp>{});
  from(std::get<Answers<JoinOp>>(without), std::type_identity<JoinOp>{});
  from(std::get<Answers<LinearOp>>(without), std::type_identity<LinearOp>{});
  from(std::get<Answers<MoeOp>>(without), std::type_identity<MoeOp>{});
  from(std::get<Answers<AttentionOp>>(without), std::type_identity<AttentionOp>{});
  from(std::get<Answers<GdnOp>>(without), std::type_identity<GdnOp>{});
  from(std::get<Answers<SampleOp>>(without), std::type_identity<SampleOp>{});
  if (!possible) return std::nullopt;
  all_ = std::move(without);
  return buckets;
}

std::vector<ServedProblem> EngineChoices::served() const {
  std::vector<ServedProblem> out;
  std::apply(
      [&](const auto&... answers) {
        const auto add = [&](const auto& list) {
          for (const auto& [problem, choices] : list) out.push_back(mettle::served(problem, choices));
        };
        (add(answers), ...);
      },
      all_);
  return out;
}

std::string EngineChoices::text() const {
  std::string text;
  for (const ServedProblem& p : served()) text += fmt::format("  {}: {}\n", p.problem, describe(p));
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
