#include "ops/gdn.h"

#include <fmt/format.h>

#include "ops/check.h"

namespace mettle {

std::string GdnProblem::text() const {
  return fmt::format("gdn h{} k{} v{} dk{} dv{} conv{} eps{:g} {}/{}/{} {}", hidden, key_heads, value_heads, dk, dv,
                     conv, eps, name_of(in_format), name_of(ba_format), name_of(out_format), name_of(activation));
}

GdnWeights pack_gdn(Layout layout, const RawGdn& raw, ThreadTeam* team) {
  const auto packed = [&](const RawSegments& segments) { return pack(layout, segments, RowOrder::kPlain, team); };
  return {packed(raw.qkv), packed(raw.z), packed(raw.ba), packed(raw.out), raw.conv, raw.a_log, raw.dt_bias, raw.norm};
}

void place_gdn(GdnWeights& weights, Place& place) {
  if (place.kind() == DeviceKind::kCpu) return;
  for (PackedMatrix* m : {&weights.qkv, &weights.z, &weights.ba, &weights.out}) *m = place_matrix(*m, place);
  for (FloatArray* a : {&weights.conv, &weights.a_log, &weights.dt_bias, &weights.norm}) *a = a->placed(place);
}

void check_args(const GdnArgs& a) {
  const GdnProblem& p = a.problem;
  CHECK(a.batch != nullptr && a.weights != nullptr, "gdn.batch, gdn.weights");
  ShapeCheck shape;
  shape("gdn.x", a.x, dtype_of(p.activation), {a.batch->rows, p.hidden});
  shape("gdn.partial", a.partial, DType::kF32, {a.batch->rows, p.hidden});
  shape("gdn.conv_state", a.conv_state, DType::kF32, {"slots", p.channels(), p.conv - 1});
  shape("gdn.state", a.state, DType::kF32, {"slots", p.value_heads, p.dk, p.dv});
  check_batch(*a.batch, false, true, shape["slots"]);
  check_matrix("gdn.qkv", a.weights->qkv, p.channels(), p.hidden, p.in_format);
  check_matrix("gdn.z", a.weights->z, p.value_heads * p.dv, p.hidden, p.in_format);
  check_matrix("gdn.ba", a.weights->ba, 2 * p.value_heads, p.hidden, p.ba_format);
  check_matrix("gdn.out", a.weights->out, p.hidden, p.value_heads * p.dv, p.out_format);
  const auto heads = static_cast<size_t>(p.value_heads);
  CHECK(a.weights->conv.size() == static_cast<size_t>(p.channels() * p.conv) && a.weights->a_log.size() == heads &&
            a.weights->dt_bias.size() == heads && a.weights->norm.size() == static_cast<size_t>(p.dv),
        "gdn.conv, gdn.a_log, gdn.dt_bias, gdn.norm");
}

#define BACKEND(method) extern const Backend<GdnOp> gdn_##method;
#include "ops/gdn.def"
#undef BACKEND

template <>
std::span<const Backend<GdnOp>* const> backends_of<GdnOp>() {
  static const Backend<GdnOp>* const kList[] = {
#define BACKEND(method) &gdn_##method,
#include "ops/gdn.def"
#undef BACKEND
  };
  return kList;
}

}  // namespace mettle
