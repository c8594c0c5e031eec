#include "ops/attention.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/check.h"

namespace mettle {

std::string_view name_of(CacheFormat format) { return format == CacheFormat::kE4M3 ? "fp8_e4m3" : "activation"; }

std::string AttentionProblem::text() const {
  return fmt::format("attention h{} q{} kv{} d{} r{}{}{}{} eps{:g} {}/{} {}{} block{}", hidden, heads, kv_heads,
                     head_dim, rotary_dim, gate ? " gate" : "", qk_norm ? " norm" : "", norm_plus_one ? "+1" : "", eps,
                     name_of(qkv_format), name_of(out_format), name_of(activation),
                     cache == CacheFormat::kE4M3 ? " kv_fp8_e4m3" : "", block_size);
}

AttentionWeights pack_attention(Layout layout, const RawAttention& raw, ThreadTeam* team) {
  const auto packed = [&](const RawSegments& segments) { return pack(layout, segments, RowOrder::kPlain, team); };
  return {packed(raw.qkv), packed(raw.out), raw.q_norm, raw.k_norm, raw.inv_freq, raw.k_scale, raw.v_scale};
}

void place_attention(AttentionWeights& weights, Place& place) {
  if (place.kind() == DeviceKind::kCpu) return;
  for (PackedMatrix* m : {&weights.qkv, &weights.out}) *m = place_matrix(*m, place);
  for (FloatArray* a : {&weights.q_norm, &weights.k_norm, &weights.inv_freq}) *a = a->placed(place);
}

void check_args(const AttentionArgs& a) {
  const AttentionProblem& p = a.problem;
  CHECK(a.batch != nullptr && a.weights != nullptr, "attention.batch, attention.weights");
  ShapeCheck shape;
  shape("attention.x", a.x, dtype_of(p.activation), {a.batch->rows, p.hidden});
  shape("attention.partial", a.partial, DType::kF32, {a.batch->rows, p.hidden});
  shape("attention.k_cache", a.k_cache, p.cache_dtype(), {"blocks", p.block_size, p.kv_heads, p.head_dim});
  shape("attention.v_cache", a.v_cache, p.cache_dtype(), {"blocks", p.block_size, p.kv_heads, p.head_dim});
  CHECK(a.batch->block_size == p.block_size,
        fmt::format("batch.block_size {} differs from the problem's {}", a.batch->block_size, p.block_size));
  check_batch(*a.batch, true, false, 0);
  check_matrix("attention.qkv", a.weights->qkv, p.qkv_rows(), p.hidden, p.qkv_format);
  check_matrix("attention.out", a.weights->out, p.hidden, p.heads * p.head_dim, p.out_format);
  const size_t norm = p.qk_norm ? static_cast<size_t>(p.head_dim) : 0;
  CHECK(a.weights->q_norm.size() == norm && a.weights->k_norm.size() == norm, "attention.q_norm, attention.k_norm");
  CHECK(a.weights->inv_freq.size() == static_cast<size_t>(p.rotary_dim / 2), "attention.inv_freq");
  const bool scaled = p.cache == CacheFormat::kE4M3;
  for (const float scale : {a.weights->k_scale, a.weights->v_scale})
    CHECK(std::isfinite(scale) && scale > 0 && (scaled || scale == 1), fmt::format("attention: cache scale {}", scale));
}

#define BACKEND(method) extern const Backend<AttentionOp> attention_##method;
#include "ops/attention.def"
#undef BACKEND

template <>
std::span<const Backend<AttentionOp>* const> backends_of<AttentionOp>() {
  static const Backend<AttentionOp>* const kList[] = {
#define BACKEND(method) &attention_##method,
#include "ops/attention.def"
#undef BACKEND
  };
  return kList;
}

}  // namespace mettle
