#include "ops/cpu/moe_route.h"

#include <algorithm>
#include <cmath>

namespace mettle::cpu {

void select_experts(const MoeProblem& p, const float* scores, int32_t* ids, float* weights) {
  const auto key = [&](int32_t e) { return std::isnan(scores[e]) ? -INFINITY : scores[e]; };
  int held = 0;
  for (int32_t e = 0; e < p.experts; ++e) {
    if (held == p.top_k && !(key(e) > key(ids[held - 1]))) continue;
    int at = held < p.top_k ? held++ : held - 1;
    for (; at > 0 && key(e) > key(ids[at - 1]); --at) ids[at] = ids[at - 1];
    ids[at] = e;
  }
  const float most = scores[ids[0]];
  double sum = 0;
  for (int j = 0; j < p.top_k; ++j) {
    weights[j] = std::exp(scores[ids[j]] - most);
    sum += weights[j];
  }
  if (!p.renormalise) {
    sum = 0;
    for (int e = 0; e < p.experts; ++e) sum += std::exp(scores[e] - most);
  }
  for (int j = 0; j < p.top_k; ++j) weights[j] = static_cast<float>(weights[j] / sum);
}

void group_by_expert(const MoeProblem& p, int rows, const int32_t* ids, const float* weights, const Grouping& out) {
  const int pairs = rows * p.top_k;
  std::fill_n(out.first, p.experts + 1, 0);
  for (int i = 0; i < pairs; ++i)
    if (ids[i] >= 0) ++out.first[ids[i]];  // -1: padding
  int32_t before = 0;
  for (int e = 0; e <= p.experts; ++e) before += std::exchange(out.first[e], before);
  for (int i = 0; i < pairs; ++i) {
    if (ids[i] < 0) continue;
    const int32_t at = out.first[ids[i]]++;
    out.row[at] = i / p.top_k;
    out.weight[at] = weights[i];
  }
  for (int e = p.experts; e > 0; --e) out.first[e] = out.first[e - 1];
  out.first[0] = 0;
}

}  // namespace mettle::cpu
