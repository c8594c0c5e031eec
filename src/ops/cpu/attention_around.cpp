#include "ops/cpu/attention_around.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace mettle::cpu {
namespace {

struct Products {
  Product qkv, out;
  Products(const Tactic& t, const AttentionProblem& p)
      : qkv(product_of(t, method_of(t), p.activation, p.qkv_format)),
        out(product_of(t, method_of(t), p.activation, p.out_format)) {}
};

struct Scratch {
  float* widened = nullptr;
  float* qkv = nullptr;
  void* core = nullptr;
  int32_t* sequence = nullptr;
  uint8_t* panels = nullptr;
  float* own = nullptr;
  size_t panel_stride = 0, own_stride = 0;
};

Scratch carve(reference::Carver& c, const Products& products, const AttentionProblem& p, int rows, int members,
              size_t own_floats) {
  const int64_t n = rows, core = int64_t{p.heads} * p.head_dim;
  Scratch s;
  if (!products.qkv.bf16 && p.activation == Activation::kBf16) s.widened = c.take<float>(n * p.hidden);
  s.qkv = c.take<float>(n * p.qkv_rows());
  s.core = c.take<uint8_t>(n * core * (products.out.bf16 ? 2 : 4));
  s.sequence = c.take<int32_t>(n);
  s.panel_stride = std::max(products.qkv.panel_bytes(shape_of(p.qkv_format, p.qkv_rows(), p.hidden)),
                            products.out.panel_bytes(shape_of(p.out_format, p.hidden, core)));
  s.panel_stride = (s.panel_stride + 63) & ~size_t{63};
  s.panels = c.take<uint8_t>(static_cast<int64_t>(s.panel_stride) * members);
  s.own_stride = (own_floats + 15) & ~size_t{15};
  s.own = c.take<float>(static_cast<int64_t>(s.own_stride) * members);
  return s;
}

}  // namespace

size_t attention_workspace(const Tactic& tactic, const AttentionProblem& p, int rows, int members, size_t own_floats) {
  reference::Carver c({});
  carve(c, Products(tactic, p), p, rows, members, own_floats);
  return c.used();
}

Verdict attention_supports(const AttentionProblem& p, const Device& device) {
  if (p.kv_heads < 1 || p.heads < 1 || p.heads % p.kv_heads != 0)
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("{} query heads, {} kv heads", p.heads, p.kv_heads),
                  "a multiple");
  if (p.rotary_dim < 0 || p.rotary_dim % 2 != 0 || p.rotary_dim > std::min(p.head_dim, 1024))
    return refuse(VerdictCode::kShapeUnsupported, fmt::format("rotary {} of {}", p.rotary_dim, p.head_dim),
                  "even, at most the head and 1024");
  return cpu_supports(device, {{p.qkv_format, p.hidden}, {p.out_format, int64_t{p.heads} * p.head_dim}});
}

AttentionAround::AttentionAround(const Tactic& tactic, const AttentionArgs& a, Stream& stream, size_t own_floats)
    : a_(a),
      tactic_(tactic),
      stream_(stream),
      kernels_(kernels_of(tactic.isa)),
      members_(reference::members_of(stream)) {
  const Products products(tactic, a.problem);
  qkv_product_ = products.qkv;
  out_product_ = products.out;
  reference::Carver c(a.ws);
  const Scratch s = carve(c, products, a.problem, a.batch->rows, members_, own_floats);
  widened_ = s.widened;
  qkv_ = s.qkv;
  core_ = s.core;
  sequence_ = s.sequence;
  panels_ = s.panels;
  own_ = s.own;
  panel_stride_ = s.panel_stride;
  own_stride_ = s.own_stride;
}

int AttentionAround::position(int row) const {
  const BatchSequence& s = a_.batch->sequences[static_cast<size_t>(sequence_[row])];
  return s.ctx_len + row - s.first_row;
}

const float* AttentionAround::query(int row, int head) const {
  return qkv_ + int64_t{row} * a_.problem.qkv_rows() + int64_t{head} * head_stride();
}

float* AttentionAround::own(int member) const { return own_ + static_cast<size_t>(member) * own_stride_; }

void AttentionAround::begin() {
  const int rows = a_.batch->rows;
  const Inputs inputs{a_.x, widened_};
  int index = 0;
  for (const BatchSequence& s : a_.batch->sequences) {
    std::fill_n(sequence_ + s.first_row, s.q_len, index);
    ++index;
  }
  widen_rows(tactic_, inputs, stream_);
  multiply(qkv_product_, tile_matrix(a_.weights->qkv), panels_, panel_stride_, inputs.rows(qkv_product_, rows),
           {qkv_, a_.problem.qkv_rows()}, stream_);
  reference::for_each(stream_, rows, [&](int64_t row) { append(static_cast<int>(row)); });
}

void AttentionAround::end() {
  const int64_t core = int64_t{a_.problem.heads} * a_.problem.head_dim;
  multiply(out_product_, tile_matrix(a_.weights->out), panels_, panel_stride_, own_rows(core_, core, a_.batch->rows),
           {a_.partial.as<float>(), a_.problem.hidden}, stream_);
}

void AttentionAround::norm_and_rotate(const FloatArray& weight, const float* cosines, const float* sines,
                                      float* head) const {
  const AttentionProblem& p = a_.problem;
  if (p.qk_norm) {
    const float scale = 1.f / std::sqrt(kernels_.dot(head, head, p.head_dim) / static_cast<float>(p.head_dim) + p.eps);
    kernels_.normed(head, scale, weight.data(), p.norm_plus_one ? 1.f : 0.f, head, p.head_dim, false);
  }
  kernels_.rotate(head, cosines, sines, p.rotary_dim / 2);
}

// Norm and rotation of a row's q and k in place; k and v go to the caches.
void AttentionAround::append(int row) const {
  constexpr int kMostPairs = 512;  // attention_supports() holds rotary_dim to it
  const AttentionProblem& p = a_.problem;
  float cosines[kMostPairs], sines[kMostPairs];
  const BatchSequence& s = a_.batch->sequences[static_cast<size_t>(sequence_[row])];
  const int at = position(row), dim = p.head_dim;
  for (int i = 0; i < p.rotary_dim / 2; ++i) {
    const float angle = static_cast<float>(at) * a_.weights->inv_freq[static_cast<size_t>(i)];
    cosines[i] = std::cos(angle);
    sines[i] = std::sin(angle);
  }
  float* q = qkv_ + int64_t{row} * p.qkv_rows();
  float* k = q + int64_t{p.heads} * head_stride();
  const float* v = k + int64_t{p.kv_heads} * dim;
  for (int h = 0; h < p.heads; ++h) norm_and_rotate(a_.weights->q_norm, cosines, sines, q + h * head_stride());
  for (int h = 0; h < p.kv_heads; ++h) norm_and_rotate(a_.weights->k_norm, cosines, sines, k + h * dim);
  const int64_t slot = int64_t{s.block_table[at / p.block_size]} * p.block_size + at % p.block_size;
  const int64_t values = int64_t{p.kv_heads} * dim;
  const bool bf16 = p.activation == Activation::kBf16;
  if (p.cache == CacheFormat::kE4M3) {
    kernels_.to_e4m3(k, a_.weights->k_scale, a_.k_cache.as<uint8_t>() + slot * values, values);
    kernels_.to_e4m3(v, a_.weights->v_scale, a_.v_cache.as<uint8_t>() + slot * values, values);
    return;
  }
  const int64_t offset = slot * values * (bf16 ? 2 : 4);
  kernels_.round_to(k, a_.k_cache.as<uint8_t>() + offset, values, bf16, bf16);
  kernels_.round_to(v, a_.v_cache.as<uint8_t>() + offset, values, bf16, bf16);
}

AttendArgs AttentionAround::over_cache(const BatchSequence& s, int kv_head) const {
  const AttentionProblem& p = a_.problem;
  const int64_t start = int64_t{kv_head} * p.head_dim * static_cast<int64_t>(size_of(p.cache_dtype()));
  const int64_t key_stride = int64_t{p.kv_heads} * p.head_dim;
  return {.head_dim = p.head_dim,
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim))) * a_.weights->k_scale,
          .k_cache = a_.k_cache.as<uint8_t>() + start,
          .v_cache = a_.v_cache.as<uint8_t>() + start,
          .block_table = s.block_table,
          .block_size = p.block_size,
          .block_stride = key_stride * p.block_size,
          .key_stride = key_stride};
}

void AttentionAround::finish(int row, int head, float* o, float* room) const {
  const AttentionProblem& p = a_.problem;
  const int dim = p.head_dim;
  for (int d = 0; p.cache == CacheFormat::kE4M3 && d < dim; ++d) o[d] *= a_.weights->v_scale;
  if (p.gate) {
    kernels_.sigmoid(query(row, head) + dim, room, dim);
    for (int d = 0; d < dim; ++d) o[d] *= room[d];
  }
  const int64_t at = (int64_t{row} * p.heads + head) * dim;
  kernels_.round_to(o, static_cast<uint8_t*>(core_) + at * (out_product_.bf16 ? 2 : 4), dim,
                    p.activation == Activation::kBf16, out_product_.bf16);
}

}  // namespace mettle::cpu
