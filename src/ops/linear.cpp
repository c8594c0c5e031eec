#include "ops/linear.h"

#include <fmt/format.h>

#include "ops/check.h"

namespace mettle {

std::string LinearProblem::text() const {
  return fmt::format("linear {}->{} {} {}", in, out, name_of(format), name_of(activation));
}

void check_args(const LinearArgs& a) {
  ShapeCheck shape;
  shape("linear.x", a.x, dtype_of(a.problem.activation), {a.rows, a.problem.in});
  shape("linear.y", a.y, DType::kF32, {a.rows, a.problem.out});
  CHECK(a.weight != nullptr, "linear.weight");
  check_matrix("linear.weight", *a.weight, a.problem.out, a.problem.in, a.problem.format);
}

#define BACKEND(method) extern const Backend<LinearOp> linear_##method;
#include "ops/linear.def"
#undef BACKEND

template <>
std::span<const Backend<LinearOp>* const> backends_of<LinearOp>() {
  static const Backend<LinearOp>* const kList[] = {
#define BACKEND(method) &linear_##method,
#include "ops/linear.def"
#undef BACKEND
  };
  return kList;
}

}  // namespace mettle
