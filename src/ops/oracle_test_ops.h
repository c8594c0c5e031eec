// Random problems of the weighted ops with everything a run needs, for the tests of oracles and reference backends.
#pragma once
#include <vector>

#include "ops/oracle.h"
#include "ops/oracle_test_support.h"

namespace mettle::oracle_test {

struct MoeSetup {
  MoeProblem p;
  RawMoe raw;
  MoeWeights packed;
  std::vector<Weights> memory;
  Values x, partial;
  std::vector<int32_t> ids;
  std::vector<float> weights;

  MoeSetup(const MoeProblem& problem, int rows, Random& random, float gain = 1.7f)
      : p(problem),
        x(dtype_of(p.activation), {rows, p.hidden}),
        partial(DType::kF32, {rows, p.hidden}),
        ids(static_cast<size_t>(rows * p.top_k)),
        weights(ids.size()) {
    const auto take = [&](WeightFormat format, std::vector<int64_t> heights, int64_t cols, float g) {
      memory.push_back(random_weights(format, heights, cols, random, g));
      return memory.back().raw;
    };
    raw.router = take(p.router_format, {p.experts}, p.hidden, 1.5f);
    for (int e = 0; e < p.experts; ++e)
      raw.experts.push_back(
          {take(p.format, {p.width, p.width}, p.hidden, gain), take(p.format, {p.hidden}, p.width, gain)});
    if (p.shared_width > 0) {
      raw.shared = {take(p.shared_format, {p.shared_width, p.shared_width}, p.hidden, gain),
                    take(p.shared_format, {p.hidden}, p.shared_width, gain)};
      if (p.shared_gate) raw.shared_gate = take(p.router_format, {1}, p.hidden, 1.5f);
    }
    packed = pack_moe(Layout::kTile16, raw);
    x.fill(random);
  }
  int rows() const { return static_cast<int>(x.view.shape[0]); }
  MoeArgs args() {
    return {.problem = p,
            .rows = rows(),
            .x = x.view,
            .weights = &packed,
            .partial = partial.view,
            .selection = {false, ids.data(), weights.data()},
            .ws = {}};
  }
  Expected expected() { return oracle::moe(p, raw, x.view, all_of(rows()), ids.data(), {}); }
};

struct AttentionSetup {
  AttentionProblem p;
  RawAttention raw;
  AttentionWeights packed;
  std::vector<Weights> memory;
  RandomBatch batch;
  Values x, partial, k_cache, v_cache;

  AttentionSetup(const AttentionProblem& problem, const std::vector<RandomBatch::Piece>& pieces, Random& random,
                 float theta = 1e4f)
      : p(problem),
        batch(pieces, p.block_size, random),
        x(dtype_of(p.activation), {batch.batch.rows, p.hidden}),
        partial(DType::kF32, {batch.batch.rows, p.hidden}),
        k_cache(p.cache_dtype(), {batch.blocks, p.block_size, p.kv_heads, p.head_dim}),
        v_cache(p.cache_dtype(), k_cache.view.shape) {
    const int64_t heads = static_cast<int64_t>(p.heads) * p.head_dim,
                  kv = static_cast<int64_t>(p.kv_heads) * p.head_dim;
    memory.push_back(random_weights(p.qkv_format, {heads * (p.gate ? 2 : 1), kv, kv}, p.hidden, random));
    memory.push_back(random_weights(p.out_format, {p.hidden}, heads, random));
    raw = {memory[0].raw, memory[1].raw, {}, {}, {}};
    if (p.qk_norm) {
      raw.q_norm = random_vector(p.head_dim, random, p.norm_plus_one ? 0.1f : 1.1f, 0.1f);
      raw.k_norm = random_vector(p.head_dim, random, p.norm_plus_one ? 0.1f : 1.1f, 0.1f);
    }
    for (int i = 0; i < p.rotary_dim / 2; ++i)
      raw.inv_freq.push_back(static_cast<float>(std::pow(theta, -2.0 * i / p.rotary_dim)));
    if (p.cache == CacheFormat::kE4M3) {
      raw.k_scale = std::exp(normal(random));
      raw.v_scale = std::exp(normal(random));
    }
    packed = pack_attention(Layout::kTile16, raw);
    x.fill(random);
    k_cache.fill(random);
    v_cache.fill(random);
  }
  int rows() const { return batch.batch.rows; }
  AttentionArgs args() {
    return {.problem = p,
            .batch = &batch.batch,
            .x = x.view,
            .weights = &packed,
            .k_cache = k_cache.view,
            .v_cache = v_cache.view,
            .partial = partial.view,
            .ws = {}};
  }
  Expected expected() {
    return oracle::attention(p, raw, batch.batch, x.view, k_cache.view, v_cache.view, all_of(rows()), {});
  }
  // First value of the cached row of a step's row.
  int64_t cache_at(int row) const {
    for (const BatchSequence& s : batch.sequences)
      if (row < s.first_row + s.q_len) {
        const int position = s.ctx_len + row - s.first_row;
        return (static_cast<int64_t>(s.block_table[position / p.block_size]) * p.block_size + position % p.block_size) *
               p.kv_heads * p.head_dim;
      }
    return -1;
  }
  // Worst element of the appended keys or values.
  Worst worst_appended(const Expected& e, const Values& cache) const {
    return worst_of(
        e, [&](int64_t i) { return value_at(cache.view, cache_at(static_cast<int>(i / e.cols)) + i % e.cols); });
  }
};

struct GdnSetup {
  GdnProblem p;
  RawGdn raw;
  GdnWeights packed;
  std::vector<Weights> memory;
  RandomBatch batch;
  Values x, partial, conv_state, state;

  GdnSetup(const GdnProblem& problem, const std::vector<RandomBatch::Piece>& pieces, Random& random)
      : p(problem),
        batch(pieces, 16, random),
        x(dtype_of(p.activation), {batch.batch.rows, p.hidden}),
        partial(DType::kF32, {batch.batch.rows, p.hidden}),
        conv_state(DType::kF32, {static_cast<int64_t>(pieces.size()) + 1, p.channels(), p.conv - 1}),
        state(DType::kF32, {static_cast<int64_t>(pieces.size()) + 1, p.value_heads, p.dk, p.dv}) {
    const int64_t keys = static_cast<int64_t>(p.key_heads) * p.dk, values = static_cast<int64_t>(p.value_heads) * p.dv;
    memory.push_back(random_weights(p.in_format, {keys, keys, values}, p.hidden, random));
    memory.push_back(random_weights(p.in_format, {values}, p.hidden, random));
    memory.push_back(random_weights(p.ba_format, {p.value_heads, p.value_heads}, p.hidden, random));
    memory.push_back(random_weights(p.out_format, {p.hidden}, values, random));
    raw = {memory[0].raw,
           memory[1].raw,
           memory[2].raw,
           memory[3].raw,
           random_vector(p.channels() * static_cast<int64_t>(p.conv), random, 0, 0.5f),
           {},
           {},
           {}};
    for (int h = 0; h < p.value_heads; ++h)
      raw.a_log.push_back(std::log(0.02f + 8 * static_cast<float>(random() % 1000) / 1000.f *
                                               static_cast<float>(random() % 1000) / 1000.f));
    raw.dt_bias = random_vector(p.value_heads, random, -1, 1);
    raw.norm = random_vector(p.dv, random, 1, 0.1f);
    packed = pack_gdn(Layout::kTile16, raw);
    x.fill(random);
    conv_state.fill(random);
    state.fill(random, 0.1f);
  }
  int rows() const { return batch.batch.rows; }
  GdnArgs args() {
    return {.problem = p,
            .batch = &batch.batch,
            .x = x.view,
            .weights = &packed,
            .conv_state = conv_state.view,
            .state = state.view,
            .partial = partial.view,
            .ws = {}};
  }
  oracle::GdnExpected expected() { return oracle::gdn(p, raw, batch.batch, x.view, conv_state.view, state.view, {}); }
  float* state_of(int slot) { return state.f32() + static_cast<int64_t>(slot) * p.value_heads * p.dk * p.dv; }
  float* conv_of(int slot) { return conv_state.f32() + static_cast<int64_t>(slot) * p.channels() * (p.conv - 1); }
};

}  // namespace mettle::oracle_test
