// What CUDA backends of moe ask of a problem.
#pragma once
#include <fmt/format.h>

#include "ops/cuda/moe_few_rows.h"
#include "ops/cuda/support.h"

namespace mettle {

inline Verdict cuda_moe_weights(const MoeProblem& p) {
  if (Verdict v = cuda_weight("router", p.router_format, p.hidden); !v.ok()) return v;
  if (Verdict v = cuda_weight("gate_up", p.format, p.hidden); !v.ok()) return v;
  if (Verdict v = cuda_weight("down", p.format, p.width); !v.ok()) return v;
  if (p.shared_width > 0) {
    if (Verdict v = cuda_weight("shared gate_up", p.shared_format, p.hidden); !v.ok()) return v;
    if (Verdict v = cuda_weight("shared down", p.shared_format, p.shared_width); !v.ok()) return v;
  }
  return {};
}

// Of the fast ones.
inline Verdict cuda_moe(const MoeProblem& p, const Device& device) {
  if (Verdict v = cuda_device(device, 80); !v.ok()) return v;
  if (Verdict v = cuda_activation(p.activation); !v.ok()) return v;
  if (p.experts > cuda::kMaxExperts)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("{} experts", p.experts),
                  fmt::format("at most {}", cuda::kMaxExperts));
  if (p.top_k < 1 || p.top_k > std::min(p.experts, cuda::kMaxTopK))
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("top {} of {} experts", p.top_k, p.experts),
                  fmt::format("1..{}", std::min(p.experts, cuda::kMaxTopK)));
  if (Verdict v = cuda_moe_weights(p); !v.ok()) return v;
  return cuda_built();
}

}  // namespace mettle
