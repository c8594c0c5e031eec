#include "models/gdn_block.h"

#include <fmt/format.h>

namespace mettle {
namespace {

std::vector<float> keep(const std::vector<float>& values, Range range) {
  return {values.begin() + range.begin, values.begin() + range.end};
}

}  // namespace

GdnBlock::GdnBlock(const GdnShape& shape, const BlockContext& context, std::string module, WeightReader& plan)
    : shape_(shape), context_(context), module_(std::move(module)) {
  const ModelOptions& o = context.options;
  cut_ = cut_heads(module_, shape.key_heads, shape.value_heads, o.rank, o.ranks);
  const RawGdn raw = read(plan);
  RawSegments in = raw.qkv;
  in.insert(in.end(), raw.z.begin(), raw.z.end());  // qkv and z are one format in the problem
  problem_ = {.hidden = context.hidden,
              .key_heads = static_cast<int>(cut_.groups.size()),
              .value_heads = static_cast<int>(cut_.heads.size()),
              .dk = shape.dk,
              .dv = shape.dv,
              .conv = shape.conv,
              .eps = context.eps,
              .in_format = format_of(in),
              .ba_format = format_of(raw.ba),
              .out_format = format_of(raw.out),
              .activation = o.activation};
  for (const auto* m : {&raw.qkv, &raw.z, &raw.ba, &raw.out}) count_bytes(bytes_, context_.layout(), *m);
  for (const auto* v : {&raw.conv, &raw.a_log, &raw.dt_bias, &raw.norm}) count_bytes(bytes_, *v);
}

// qkv is [q of all key heads | k of all key heads | v of all value heads]: each part is cut by itself.
RawGdn GdnBlock::read(WeightReader& reader) const {
  const int64_t hidden = context_.hidden, dk = shape_.dk, dv = shape_.dv;
  const int64_t key_rows = shape_.key_heads * dk, value_rows = shape_.value_heads * dv;
  const Range q{cut_.groups.begin * dk, cut_.groups.end * dk};
  const Range k{key_rows + q.begin, key_rows + q.end};
  const Range v{2 * key_rows + cut_.heads.begin * dv, 2 * key_rows + cut_.heads.end * dv};
  const Range values{cut_.heads.begin * dv, cut_.heads.end * dv};
  RawGdn raw;
  const RawMatrix qkv = reader.dense(module_ + ".in_proj_qkv", 2 * key_rows + value_rows, hidden);
  const std::vector<float> conv =
      reader.vector(module_ + ".conv1d.weight", {2 * key_rows + value_rows, 1, shape_.conv});
  for (const Range part : {q, k, v}) {
    raw.qkv.push_back(keep_rows(qkv, part));
    raw.conv.insert(raw.conv.end(), conv.begin() + part.begin * shape_.conv, conv.begin() + part.end * shape_.conv);
  }
  raw.z.push_back(keep_rows(reader.dense(module_ + ".in_proj_z", value_rows, hidden), values));
  for (const char* name : {".in_proj_b", ".in_proj_a"})
    raw.ba.push_back(keep_rows(reader.matrix(module_ + name, shape_.value_heads, hidden), cut_.heads));
  raw.out.push_back(keep_cols(reader.dense(module_ + ".out_proj", hidden, value_rows), values));
  raw.a_log = keep(reader.vector(module_ + ".A_log", {shape_.value_heads}), cut_.heads);
  raw.dt_bias = keep(reader.vector(module_ + ".dt_bias", {shape_.value_heads}), cut_.heads);
  raw.norm = reader.vector(module_ + ".norm.weight", {dv});
  return raw;
}

void GdnBlock::add_caches(int layer, std::vector<CacheEntry>& caches) {
  first_cache_ = caches.size();
  caches.push_back({CacheEntry::Kind::kSlot, fmt::format("layers.{}.conv_state", layer), DType::kF32,
                    Shape{problem_.channels(), problem_.conv - 1}});
  caches.push_back({CacheEntry::Kind::kSlot, fmt::format("layers.{}.state", layer), DType::kF32,
                    Shape{problem_.value_heads, problem_.dk, problem_.dv}});
}

void GdnBlock::add_bytes(WeightBytes& bytes) const {
  for (size_t f = 0; f < bytes.by_format.size(); ++f) bytes.by_format[f] += bytes_.by_format[f];
}

size_t GdnBlock::workspace(const StepLimits& limits) const {
  return choices_.workspace(problem_, limits.rows, limits.team_members);
}

void GdnBlock::load(WeightReader& reader, Place& place) {
  weights_ = pack_gdn(context_.layout(), read(reader), reader.team());
  place_gdn(weights_, place);
  reader.release();
}

void GdnBlock::run(const Batch& batch, const TensorView& x, std::span<const TensorView> caches,
                   const TensorView& partial, Workspace ws, Stream& stream) const {
  const GdnArgs args{.problem = problem_,
                     .batch = &batch,
                     .x = x,
                     .weights = &weights_,
                     .conv_state = caches[first_cache_],
                     .state = caches[first_cache_ + 1],
                     .partial = partial,
                     .ws = ws};
  run_op(choices_.at(batch.rows), args, stream);
}

}  // namespace mettle
