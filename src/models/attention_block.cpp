#include "models/attention_block.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace mettle {
namespace {

// theta^(-2i/rotary), the exponent in float32 as the reference has it.
std::vector<float> inverse_frequencies(double theta, int rotary_dim) {
  std::vector<float> f(static_cast<size_t>(rotary_dim / 2));
  for (size_t i = 0; i < f.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    f[i] = 1.f / static_cast<float>(std::pow(theta, exponent));
  }
  return f;
}

// Names of the scale of k or v: ModelOpt's, and compressed-tensors'.
std::string projection_scale(const std::string& module, char of) {
  return fmt::format("{}.{}_proj.{}_scale", module, of, of);
}
std::string layer_scale(const std::string& module, char of) { return fmt::format("{}.{}_scale", module, of); }

}  // namespace

AttentionBlock::AttentionBlock(const AttentionShape& shape, const BlockContext& context, std::string module,
                               WeightReader& plan)
    : shape_(shape), context_(context), module_(std::move(module)) {
  const ModelOptions& o = context.options;
  cut_ = cut_heads(module_, shape.kv_heads, shape.heads, o.rank, o.ranks);
  const auto has_scale = [&](char of) {
    return plan.has_tensor(projection_scale(module_, of)) || plan.has_tensor(layer_scale(module_, of));
  };
  has_scales_ = has_scale('k') && has_scale('v');
  const RawAttention raw = read(plan);
  problem_ = {.hidden = context.hidden,
              .heads = static_cast<int>(cut_.heads.size()),
              .kv_heads = static_cast<int>(cut_.groups.size()),
              .head_dim = shape.head_dim,
              .rotary_dim = shape.rotary_dim,
              .gate = shape.gate,
              .qk_norm = true,
              .norm_plus_one = context.norm_plus_one,
              .eps = context.eps,
              .qkv_format = format_of(raw.qkv),
              .out_format = format_of(raw.out),
              .activation = o.activation,
              .cache = o.cache,
              .block_size = o.block_size};
  count_bytes(bytes_, context_.layout(), raw.qkv);
  count_bytes(bytes_, context_.layout(), raw.out);
  for (const auto* v : {&raw.q_norm, &raw.k_norm, &raw.inv_freq}) count_bytes(bytes_, *v);
}

// Rows of q are per head [q | gate], so whole heads are kept by rows.
RawAttention AttentionBlock::read(WeightReader& reader) const {
  const int64_t d = shape_.head_dim, q_rows = d * (shape_.gate ? 2 : 1), hidden = context_.hidden;
  const auto heads = [](Range r, int64_t rows) { return Range{r.begin * rows, r.end * rows}; };
  RawAttention raw;
  raw.qkv.push_back(
      keep_rows(reader.dense(module_ + ".q_proj", shape_.heads * q_rows, hidden), heads(cut_.heads, q_rows)));
  for (const char* name : {".k_proj", ".v_proj"})
    raw.qkv.push_back(keep_rows(reader.dense(module_ + name, shape_.kv_heads * d, hidden), heads(cut_.groups, d)));
  raw.out.push_back(keep_cols(reader.dense(module_ + ".o_proj", hidden, shape_.heads * d), heads(cut_.heads, d)));
  raw.q_norm = reader.vector(module_ + ".q_norm.weight", {d});
  raw.k_norm = reader.vector(module_ + ".k_norm.weight", {d});
  raw.inv_freq = inverse_frequencies(shape_.rope_theta, shape_.rotary_dim);
  if (context_.options.cache == CacheFormat::kE4M3) {
    raw.k_scale = read_scale(reader, 'k');
    raw.v_scale = read_scale(reader, 'v');
  } else {
    for (const char of : {'k', 'v'})
      for (const std::string& name : {projection_scale(module_, of), layer_scale(module_, of)})
        reader.ignore(name, "scale of an FP8 cache: the cache holds the activation type");
  }
  reader.ignore(module_ + ".rotary_emb.inv_freq", "computed from the config");
  return raw;
}

// 1 where the checkpoint has none.
float AttentionBlock::read_scale(WeightReader& reader, char of) const {
  float scale = 1;
  for (const std::string& name : {layer_scale(module_, of), projection_scale(module_, of)}) {
    if (reader.planning() || !reader.has_tensor(name)) continue;
    scale = reader.vector(name, {1})[0];
    if (!(scale > 0)) fail(Code::kBadModel, fmt::format("{}: must be above 0, is {}", name, scale));
  }
  return scale;
}

void AttentionBlock::add_caches(int layer, std::vector<CacheEntry>& caches) {
  first_cache_ = caches.size();
  for (const char* kind : {"k", "v"})
    caches.push_back({CacheEntry::Kind::kPaged, fmt::format("layers.{}.{}", layer, kind), problem_.cache_dtype(),
                      Shape{problem_.kv_heads, problem_.head_dim}});
}

void AttentionBlock::add_bytes(WeightBytes& bytes) const {
  for (size_t f = 0; f < bytes.by_format.size(); ++f) bytes.by_format[f] += bytes_.by_format[f];
}

size_t AttentionBlock::workspace(const StepLimits& limits) const {
  return choices_.workspace(problem_, limits.rows, limits.team_members);
}

void AttentionBlock::load(WeightReader& reader, Place& place) {
  weights_ = pack_attention(context_.layout(), read(reader), reader.team());
  place_attention(weights_, place);
  reader.release();
}

void AttentionBlock::run(const Batch& batch, const TensorView& x, std::span<const TensorView> caches,
                         const TensorView& partial, Workspace ws, Stream& stream) const {
  const AttentionArgs args{.problem = problem_,
                           .batch = &batch,
                           .x = x,
                           .weights = &weights_,
                           .k_cache = caches[first_cache_],
                           .v_cache = caches[first_cache_ + 1],
                           .partial = partial,
                           .ws = ws};
  run_op(choices_.at(batch.rows), args, stream);
}

}  // namespace mettle
