// What the CPU methods of gdn share, which is all but the recurrence: projections by gemv or gemm (the tactic's
// method), convolution over blocks of 64 channels, gates and norms. Each member takes (sequence, value head) pairs and
// runs the recurrence over all rows of the sequence.
#pragma once
#include "ops/cpu/product.h"
#include "ops/gdn.h"

namespace mettle::cpu {

struct Recurrence {
  void (*delta)(const Kernels& kernels, const DeltaArgs& a);
  size_t (*own_floats)(const GdnProblem& p);  // DeltaArgs::scratch
};

Verdict gdn_supports(const GdnProblem& p, const Device& device);
size_t gdn_workspace(const Recurrence& recurrence, const Tactic& tactic, const GdnProblem& p, int rows, int members);
void gdn_run(const Recurrence& recurrence, const Tactic& tactic, const GdnArgs& args, Stream& stream);

}  // namespace mettle::cpu
