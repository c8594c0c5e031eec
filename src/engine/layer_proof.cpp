#include "engine/layer_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "engine/layer_beside.h"
#include "engine/layer_steps.h"
#include "engine/layer_watch.h"
#include "engine/watching_choices.h"
#include "ops/problem.h"

namespace mettle {
namespace {

constexpr int64_t kRowWork = 400'000'000;  // multiply-adds that judging all rows may cost
constexpr int kMostRows = 80;

// A first step tells which layers are the last of their kind, and what memory is full of; then a chunk beside a prompt,
// decode rows beside a prompt, and decode rows alone.
std::vector<LayerSteps::Turns> script(int rows) {
  const int prompt = std::clamp(rows / 2, 2, 40), chunk = std::clamp(rows / 5, 2, 17);
  return {{{0, 3}}, {{0, chunk}, {1, 5}}, {{0, 1}, {1, 1}, {2, prompt}}, {{0, 1}, {1, 1}, {2, 1}}, {{1, 1}}};
}

}  // namespace

std::string LayerProof::text() const {
  if (!verdict.ok())
    return fmt::format("layer proof: {}: {}: have {}, need {}", name_of(verdict.code), verdict.sentence, verdict.have,
                       verdict.need);
  if (beside)
    return fmt::format(
        "layer proof: {} steps, {} ops in their places beside their references, {} elements, the worst {:.2g} of what "
        "is "
        "allowed, {} of {} rows routed otherwise",
        steps, ops, comparisons, worst, rerouted, routed);
  return fmt::format("layer proof: {} steps, {} ops in their places, {} elements, the worst {:.2g} of 10 sigmas", steps,
                     ops, comparisons, worst);
}

LayerProof prove_layers(Runner& runner, const Runner::Sizes& sizes, ChoiceSource& choices) {
  if (runner.place().kind() == DeviceKind::kCuda) return prove_layers_beside(runner, sizes, choices);
  LayerProof proof;
  Model& model = *runner.ranks().front();
  const std::vector<AnyProblem> problems = model.problems();
  const int rows = static_cast<int>(std::clamp<int64_t>(kRowWork / work_of_a_row(problems), 4, kMostRows));

  ProofEntry entry;
  LayerWatch watch(choices, entry);
  LayerSteps steps(runner, sizes, kMostRows);
  runner.fill_caches(0xff, steps.blocks(), steps.slots());  // NaN: a row that no step wrote may not be read
  {
    const Watched<LayerWatch> watched(model, choices, watch);
    for (const LayerSteps::Turns& turns : script(rows)) {
      const bool ran = steps.run(turns, [&](int count, std::span<const int32_t> logit_rows) {
        watch.begin_step(fmt::format("step {} of {} rows", proof.steps, count), logit_rows, proof.steps > 0);
      });
      if (!ran) continue;
      if (proof.steps++ == 0) steps.begin_anew();
      if (!watch.verdict().ok()) break;
    }
    watch.look_at_caches();
  }
  runner.fill_caches(0, steps.blocks(), steps.slots());
  proof.verdict = watch.verdict();
  proof.ops = watch.judged();
  proof.comparisons = entry.comparisons;
  proof.worst = entry.max_error;
  if (proof.verdict.ok() && proof.comparisons == 0)
    proof.verdict = refuse(VerdictCode::kUnproved, "0 comparisons", "at least 1", "no step fits this set-up");
  return proof;
}

}  // namespace mettle
