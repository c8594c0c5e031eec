#include "ops/join.h"

#include <fmt/format.h>

namespace mettle {

std::string JoinProblem::text() const {
  return fmt::format("join h{} ranks{}{} eps{:g} {}", hidden, ranks, plus_one ? " +1" : "", eps, name_of(activation));
}

void check_args(const JoinArgs& a) {
  ShapeCheck shape;
  shape("join.residual", a.residual, DType::kF32, {a.rows, a.problem.hidden});
  shape("join.x", a.x, dtype_of(a.problem.activation), {a.rows, a.problem.hidden});
  CHECK(a.partials.size() == static_cast<size_t>(a.problem.ranks),
        fmt::format("join.partials: {} of {}", a.partials.size(), a.problem.ranks));
  CHECK(a.weight != nullptr, "join.weight");
}

#define BACKEND(method) extern const Backend<JoinOp> join_##method;
#include "ops/join.def"
#undef BACKEND

template <>
std::span<const Backend<JoinOp>* const> backends_of<JoinOp>() {
  static const Backend<JoinOp>* const kList[] = {
#define BACKEND(method) &join_##method,
#include "ops/join.def"
#undef BACKEND
  };
  return kList;
}

}  // namespace mettle
