// linear by one of the two methods; linear_cpu_gemv.cpp and linear_cpu_gemm.cpp are its two names.
#pragma once
#include "ops/cpu/product.h"
#include "ops/linear.h"

namespace mettle::cpu {

Verdict linear_supports(const LinearProblem& p, const Device& device);
size_t linear_workspace(Method method, const Tactic& tactic, const LinearProblem& p, int rows, int members);
void linear_run(Method method, const Tactic& tactic, const LinearArgs& a, Stream& stream);

}  // namespace mettle::cpu
