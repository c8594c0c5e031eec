#include "ops/moe.h"

#include <fmt/format.h>

#include "ops/check.h"

namespace mettle {

std::string MoeProblem::text() const {
  return fmt::format("moe h{} e{} k{} w{} shared{}{} {} {}/{}/{} {}", hidden, experts, top_k, width, shared_width,
                     shared_gate ? "g" : "", renormalise ? "renorm" : "plain", name_of(format), name_of(shared_format),
                     name_of(router_format), name_of(activation));
}

PackedExpert pack_expert(const RawExpert& raw) { return {pack_tile16(raw.gate_up), pack_tile16(raw.down)}; }

MoeWeights pack_moe(const RawMoe& raw) {
  MoeWeights w{.router = pack_tile16(raw.router),
               .shared = pack_expert(raw.shared),
               .shared_gate = pack_tile16(raw.shared_gate)};
  for (const RawExpert& e : raw.experts) w.experts.push_back(pack_expert(e));
  return w;
}

void check_args(const MoeArgs& a) {
  const MoeProblem& p = a.problem;
  ShapeCheck shape;
  shape("moe.x", a.x, dtype_of(p.activation), {a.rows, p.hidden});
  shape("moe.partial", a.partial, DType::kF32, {a.rows, p.hidden});
  CHECK(a.weights != nullptr && a.weights->experts.size() == static_cast<size_t>(p.experts), "moe.weights");
  CHECK(a.selection.ids != nullptr && a.selection.weights != nullptr, "moe.selection");
  check_matrix("moe.router", a.weights->router, p.experts, p.hidden, p.router_format);
  const PackedExpert& first = a.weights->experts.front();
  check_matrix("moe.gate_up", first.gate_up, 2 * p.width, p.hidden, p.format);
  check_matrix("moe.down", first.down, p.hidden, p.width, p.format);
  if (p.shared_width > 0) {
    check_matrix("moe.shared.gate_up", a.weights->shared.gate_up, 2 * p.shared_width, p.hidden, p.shared_format);
    check_matrix("moe.shared.down", a.weights->shared.down, p.hidden, p.shared_width, p.shared_format);
    if (p.shared_gate) check_matrix("moe.shared_gate", a.weights->shared_gate, 1, p.hidden, p.router_format);
  }
}

#define BACKEND(method) extern const Backend<MoeOp> moe_##method;
#include "ops/moe.def"
#undef BACKEND

template <>
std::span<const Backend<MoeOp>* const> backends_of<MoeOp>() {
  static const Backend<MoeOp>* const kList[] = {
#define BACKEND(method) &moe_##method,
#include "ops/moe.def"
#undef BACKEND
  };
  return kList;
}

}  // namespace mettle
