#include "ops/moe.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/check.h"

namespace mettle {

std::string MoeProblem::text() const {
  return fmt::format("moe h{} e{} k{} w{} shared{}{} {} {}/{}/{} {}", hidden, experts, top_k, width, shared_width,
                     shared_gate ? "g" : "", renormalise ? "renorm" : "plain", name_of(format), name_of(shared_format),
                     name_of(router_format), name_of(activation));
}

PackedExpert pack_expert(Layout layout, const RawExpert& raw) {
  return {pack(layout, raw.gate_up, layout == Layout::kP64 ? RowOrder::kGateUp : RowOrder::kPlain),
          pack(layout, raw.down)};
}

void pack_router(Layout layout, const RawMoe& raw, MoeWeights& weights) {
  if (layout != Layout::kP64) {
    weights.router = pack(layout, raw.router);
    weights.shared_gate = pack(layout, raw.shared_gate);
    return;
  }
  RawSegments both = raw.router;
  both.insert(both.end(), raw.shared_gate.begin(), raw.shared_gate.end());
  weights.router = pack(layout, both);
}

void point_at_experts(MoeWeights& weights) {
  auto memory = std::make_shared<const Buffer>(weights.experts.size() * sizeof(ExpertPointers));
  auto* pointers = memory->as<ExpertPointers>();
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    const PackedExpert& x = weights.experts[e];
    pointers[e] = {x.gate_up.data, x.gate_up.row_scale, x.down.data, x.down.row_scale};
  }
  weights.pointers = pointers;
  weights.pointer_memory = std::move(memory);
}

MoeWeights pack_moe(Layout layout, const RawMoe& raw) {
  MoeWeights w{.shared = pack_expert(layout, raw.shared)};
  pack_router(layout, raw, w);
  for (const RawExpert& e : raw.experts) w.experts.push_back(pack_expert(layout, e));
  if (layout == Layout::kP64) point_at_experts(w);
  return w;
}

PackedExpert place_expert(const PackedExpert& expert, Place& place) {
  return {place_matrix(expert.gate_up, place), place_matrix(expert.down, place)};
}

void place_moe(MoeWeights& weights, Place& place) {
  if (place.kind() == DeviceKind::kCpu) return;
  weights.router = place_matrix(weights.router, place);
  weights.shared_gate = place_matrix(weights.shared_gate, place);
  weights.shared = place_expert(weights.shared, place);
  point_at_experts(weights);
  const size_t bytes = weights.experts.size() * sizeof(ExpertPointers);
  auto* pointers = static_cast<ExpertPointers*>(place.take(bytes));
  place.copy_in(pointers, weights.pointers, bytes);
  weights.pointers = pointers;
  weights.pointer_memory = nullptr;
}

void check_args(const MoeArgs& a) {
  const MoeProblem& p = a.problem;
  ShapeCheck shape;
  shape("moe.x", a.x, dtype_of(p.activation), {a.rows, p.hidden});
  shape("moe.partial", a.partial, DType::kF32, {a.rows, p.hidden});
  CHECK(a.weights != nullptr && a.weights->experts.size() == static_cast<size_t>(p.experts), "moe.weights");
  CHECK(a.selection.ids != nullptr && a.selection.weights != nullptr, "moe.selection");
  if (a.selection.given && a.weights->router.layout != Layout::kP64)  // a GPU's lie where only it reads
    for (int64_t i = 0; i < int64_t{a.rows} * p.top_k; ++i)
      if (const int32_t id = a.selection.ids[i]; id < -1 || id >= p.experts)
        fail(Code::kInternal,
             fmt::format("moe.selection: expert ids must be in 0..{} or -1, got {} in row {}, place {}", p.experts - 1,
                         id, i / p.top_k, i % p.top_k));
  const bool p64 = a.weights->router.layout == Layout::kP64;
  check_matrix("moe.router", a.weights->router, p.experts + (p64 && p.shared_gate ? 1 : 0), p.hidden, p.router_format);
  CHECK(!p64 || a.weights->pointers != nullptr, "moe.pointers");
  const PackedExpert& first = a.weights->experts.front();
  check_matrix("moe.gate_up", first.gate_up, 2 * p.width, p.hidden, p.format);
  check_matrix("moe.down", first.down, p.hidden, p.width, p.format);
  if (p.shared_width > 0) {
    check_matrix("moe.shared.gate_up", a.weights->shared.gate_up, 2 * p.shared_width, p.hidden, p.shared_format);
    check_matrix("moe.shared.down", a.weights->shared.down, p.hidden, p.shared_width, p.shared_format);
    if (p.shared_gate && !p64) check_matrix("moe.shared_gate", a.weights->shared_gate, 1, p.hidden, p.router_format);
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
