#include "ops/sample.h"

#include <fmt/format.h>

namespace mettle {

std::string SampleProblem::text() const { return fmt::format("sample v{} usable{}", vocab, usable); }

void check_args(const SampleArgs& a) {
  ShapeCheck shape;
  shape("sample.logits", a.logits, DType::kF32, {a.rows, a.problem.vocab});
  CHECK(a.params.size() == static_cast<size_t>(a.rows) && a.results.size() == static_cast<size_t>(a.rows),
        "sample.params, sample.results");
  CHECK(a.problem.usable >= 1 && a.problem.usable <= a.problem.vocab, "sample.usable");
}

#define BACKEND(method) extern const Backend<SampleOp> sample_##method;
#include "ops/sample.def"
#undef BACKEND

template <>
std::span<const Backend<SampleOp>* const> backends_of<SampleOp>() {
  static const Backend<SampleOp>* const kList[] = {
#define BACKEND(method) &sample_##method,
#include "ops/sample.def"
#undef BACKEND
  };
  return kList;
}

}  // namespace mettle
