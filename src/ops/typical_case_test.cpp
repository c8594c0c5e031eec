// Cases that are timed, and that the naive check of the planted faults compares: their inputs follow from shape and
// seed alone.
#include <gtest/gtest.h>

#include <cstring>

#include "ops/attention_cases.h"
#include "ops/gdn_cases.h"

namespace mettle {
namespace {

bool same(const CaseInput& a, const CaseInput& b) {
  return a.view().bytes() == b.view().bytes() && std::memcmp(a.view().data, b.view().data, a.view().bytes()) == 0;
}

TEST(TypicalCases, InputsAreTheSameWhetherWeightsAreGivenOrNot) {
  const AttentionProblem attention{.hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 32, .rotary_dim = 8};
  const AttentionCase own = attention_typical_case(attention, 3, 2, 20, 7, Layout::kTile16);
  const AttentionCase given = attention_typical_case(attention, 3, 2, 20, 7, Layout::kTile16, own.weights);
  EXPECT_TRUE(same(own.x, given.x));
  EXPECT_TRUE(same(own.k_cache, given.k_cache));
  EXPECT_TRUE(same(own.v_cache, given.v_cache));

  const GdnProblem gdn{.hidden = 64, .key_heads = 1, .value_heads = 2, .dk = 16, .dv = 16};
  const GdnCase own_gdn = gdn_typical_case(gdn, 3, 2, 7, Layout::kTile16);
  const GdnCase given_gdn = gdn_typical_case(gdn, 3, 2, 7, Layout::kTile16, own_gdn.weights);
  EXPECT_TRUE(same(own_gdn.x, given_gdn.x));
  EXPECT_TRUE(same(own_gdn.state, given_gdn.state));
  EXPECT_TRUE(same(own_gdn.conv_state, given_gdn.conv_state));
}

}  // namespace
}  // namespace mettle
