// Whole layers, proved on the loaded model after whole steps and before the canary. A proof of an op runs it alone, in
// memory of its own; a step proof compares steps with each other. Neither sees an op that is right alone and wrong in
// its place: one that takes what another left for its own, writes where something lives that is still needed, or reads
// a cache otherwise than its sibling for more rows wrote it. So a few steps run as they will be served, and of rank 0:
//   - each embed, join, output head and the last layer of each kind (attention, gdn, moe) is judged against the float64
//     oracle, by the same rules as alone, under the inputs that the chain gave it and the weights that are loaded;
//   - the residual, the input, the partial of every op of every layer, and caches and states from step to step are bit
//     for bit what the op before left.
// An error is thus never carried from op to op, and the bounds are those of docs/proofs.md.
#pragma once
#include <cstdint>
#include <string>

#include "engine/runner.h"
#include "models/choice_source.h"
#include "ops/verdict.h"

namespace mettle {

struct LayerProof {
  Verdict verdict;
  int steps = 0, ops = 0;    // ops that were judged
  uint64_t comparisons = 0;  // elements compared; zero is never a pass
  double worst = 0;          // element: sigmas, of judge::kElement; beside a reference: of what is allowed
  // Beside the references of a GPU: rows that were routed, and those to other experts (see layer_beside.h).
  bool beside = false;
  uint64_t routed = 0, rerouted = 0;
  int64_t bytes = 0;         // of the device, while it ran
  std::string text() const;  // one line
};

// On a GPU, whose weights cannot be read back in time: beside the references of the device, which proofs hold to the
// oracle (layer_beside.h). Caches hold zeros where it wrote when it returns. `choices` are those that serve.
LayerProof prove_layers(Runner& runner, const Runner::Sizes& sizes, ChoiceSource& choices);

}  // namespace mettle
