// moe by one of the two methods; moe_cpu_gemv.cpp and moe_cpu_gemm.cpp are its two names.
//
// Three phases, each one call of the team: router; gate, up and silu of all active experts as one list of tiles; down
// of all, where a member owns some columns of the output and adds the experts in ascending order, the shared expert
// last. So an expert's weights are read once per step, and a row's result does not depend on the other rows.
#pragma once
#include "ops/cpu/product.h"
#include "ops/moe.h"

namespace mettle::cpu {

Verdict moe_supports(const MoeProblem& p, const Device& device);
size_t moe_workspace(Method method, const Tactic& tactic, const MoeProblem& p, int rows, int members);
void moe_run(Method method, const Tactic& tactic, const MoeArgs& a, Stream& stream);

}  // namespace mettle::cpu
