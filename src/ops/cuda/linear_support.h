// What every CUDA backend of linear asks of a problem.
#pragma once
#include "ops/cuda/support.h"
#include "ops/linear.h"

namespace mettle {

inline Verdict cuda_linear(const LinearProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (Verdict v = cuda_activation(p.activation); !v.ok()) return v;
  if (Verdict v = cuda_weight("weight", p.format, p.in); !v.ok()) return v;
  return cuda_built();
}

}  // namespace mettle
