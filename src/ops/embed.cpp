#include "ops/embed.h"

#include <fmt/format.h>

namespace mettle {

std::string EmbedProblem::text() const { return fmt::format("embed {}x{}", vocab, hidden); }

void check_args(const EmbedArgs& a) {
  ShapeCheck shape;
  shape("embed.table", a.table, DType::kBF16, {a.problem.vocab, a.problem.hidden});
  shape("embed.residual", a.residual, DType::kF32, {a.rows, a.problem.hidden});
  for (int i = 0; i < a.rows; ++i)
    CHECK(a.ids[i] >= 0 && a.ids[i] < a.problem.vocab,
          fmt::format("embed.ids[{}] is {}, vocabulary {}", i, a.ids[i], a.problem.vocab));
}

#define BACKEND(method) extern const Backend<EmbedOp> embed_##method;
#include "ops/embed.def"
#undef BACKEND

template <>
std::span<const Backend<EmbedOp>* const> backends_of<EmbedOp>() {
  static const Backend<EmbedOp>* const kList[] = {
#define BACKEND(method) &embed_##method,
#include "ops/embed.def"
#undef BACKEND
  };
  return kList;
}

}  // namespace mettle
