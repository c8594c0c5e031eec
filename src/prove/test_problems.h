// Problems of the tests: the embedded model's shapes.
#pragma once
#include <vector>

#include "ops/problem.h"

namespace mettle {

inline EmbedProblem tiny_embed() { return {6144, 256}; }
inline JoinProblem tiny_join(int ranks) { return {.hidden = 256, .ranks = ranks, .plus_one = true}; }
inline LinearProblem tiny_head() { return {.in = 256, .out = 6144}; }
inline MoeProblem tiny_moe() {
  return {.hidden = 256, .experts = 16, .top_k = 4, .width = 128, .shared_width = 128, .shared_gate = true};
}
inline AttentionProblem tiny_attention() {
  return {.hidden = 256,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .rotary_dim = 16,
          .gate = true,
          .qk_norm = true,
          .norm_plus_one = true};
}
inline GdnProblem tiny_gdn() { return {.hidden = 256, .key_heads = 2, .value_heads = 4, .dk = 64, .dv = 64}; }
inline SampleProblem tiny_sample() { return {6144, 6144}; }

inline std::vector<AnyProblem> tiny_problems() {
  return {tiny_embed(), tiny_join(0),     tiny_join(1), tiny_head(),
          tiny_moe(),   tiny_attention(), tiny_gdn(),   tiny_sample()};
}

}  // namespace mettle
