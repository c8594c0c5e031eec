// Whole steps, proved after loading and before the canary. A proof of an op runs it in memory of its own, so it cannot
// see faults of the chain: scratch that two ops use at once, a value read that this step did not write, rows of a cache
// read beyond the context, a captured graph that replays old pointers or old inputs. The rule is bitwise: the logits
// of a step may not depend on what lay in scratch, in its logits and in blocks and slots that are not its own, nor on
// whether its launches were captured; those of a deterministic engine's sequence nor on what else is in its steps.
#pragma once
#include "engine/runner.h"
#include "ops/verdict.h"

namespace mettle {

struct StepProof {
  Verdict verdict;
  int steps = 0;             // of one pass: prompts, chunks and decode rows mixed, then decode of every bucket
  int passes = 0;            // with other bytes in memory; one of them without graphs
  int alone = 0;             // sequences compared alone and among others; of a deterministic engine
  uint64_t comparisons = 0;  // logits compared; zero is never a pass
  bool graphs = true;        // false: what they replayed differed from what was launched, steps run without them
  std::string text() const;  // one line
};

// Runs steps on the runner's own caches, which hold zeros where it wrote when it returns. Sequences beyond three are
// used on a GPU only, where they fill the buckets of graphs.
StepProof prove_steps(Runner& runner, const Runner::Sizes& sizes);

}  // namespace mettle
