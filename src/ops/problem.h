// Any problem of any op: what a plan asks for, what a proof proves.
#pragma once
#include <string>
#include <string_view>
#include <variant>

#include "ops/attention.h"
#include "ops/embed.h"
#include "ops/gdn.h"
#include "ops/join.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/sample.h"

namespace mettle {

using AnyProblem =
    std::variant<EmbedProblem, JoinProblem, LinearProblem, MoeProblem, AttentionProblem, GdnProblem, SampleProblem>;

// The op of a problem type: OpOf<MoeProblem> is MoeOp.
template <class Problem>
struct OpOfImpl;
template <>
struct OpOfImpl<EmbedProblem> {
  using Op = EmbedOp;
};
template <>
struct OpOfImpl<JoinProblem> {
  using Op = JoinOp;
};
template <>
struct OpOfImpl<LinearProblem> {
  using Op = LinearOp;
};
template <>
struct OpOfImpl<MoeProblem> {
  using Op = MoeOp;
};
template <>
struct OpOfImpl<AttentionProblem> {
  using Op = AttentionOp;
};
template <>
struct OpOfImpl<GdnProblem> {
  using Op = GdnOp;
};
template <>
struct OpOfImpl<SampleProblem> {
  using Op = SampleOp;
};
template <class Problem>
using OpOf = typename OpOfImpl<Problem>::Op;

inline std::string text_of(const AnyProblem& problem) {
  return std::visit([](const auto& p) { return p.text(); }, problem);
}
inline std::string_view op_name_of(const AnyProblem& problem) {
  return std::visit([](const auto& p) { return OpOf<std::decay_t<decltype(p)>>::kName; }, problem);
}

}  // namespace mettle
