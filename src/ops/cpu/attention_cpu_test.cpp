// attention on the CPU: every instruction set and method against the reference backend.
#include <fmt/format.h>

#include <numeric>

#include "ops/attention.h"
#include "ops/cpu/cpu_test_support.h"

namespace mettle {

extern const Backend<AttentionOp> attention_cpu, attention_cpu_tiled, attention_reference;

namespace {

using cpu_test::Guarded;

// Sequences with their own shuffled blocks, caches filled up to ctx_len.
struct Step {
  AttentionProblem p;
  AttentionWeights weights;
  std::vector<std::vector<int32_t>> tables;
  std::vector<BatchSequence> sequences;
  Batch batch;
  Guarded x, k_cache, v_cache;

  static int blocks_of(const AttentionProblem& p, const std::vector<std::pair<int, int>>& lengths) {
    int blocks = 1;
    for (const auto& [ctx, q] : lengths) blocks += (ctx + q + p.block_size - 1) / p.block_size;
    return blocks;
  }
  static int rows_of(const std::vector<std::pair<int, int>>& lengths) {
    int rows = 0;
    for (const auto& [ctx, q] : lengths) rows += q;
    return rows;
  }

  Step(const AttentionProblem& problem, const std::vector<std::pair<int, int>>& lengths)
      : p(problem),
        x(dtype_of(p.activation), {rows_of(lengths), p.hidden}),
        k_cache(p.cache_dtype(), {blocks_of(p, lengths), p.block_size, p.kv_heads, p.head_dim}),
        v_cache(p.cache_dtype(), {blocks_of(p, lengths), p.block_size, p.kv_heads, p.head_dim}) {
    cpu_test::RandomMatrix qkv(p.qkv_format, p.qkv_rows(), p.hidden),
        out(p.out_format, p.hidden, int64_t{p.heads} * p.head_dim);
    RawAttention raw{{qkv.raw}, {out.raw}};
    for (int i = 0; i < p.head_dim && p.qk_norm; ++i) {
      raw.q_norm.push_back(1 + 0.3f * cpu_test::normal());
      raw.k_norm.push_back(1 + 0.3f * cpu_test::normal());
    }
    for (int i = 0; i < p.rotary_dim / 2; ++i)
      raw.inv_freq.push_back(std::pow(1e4f, -2.f * static_cast<float>(i) / static_cast<float>(p.rotary_dim)));
    if (p.cache == CacheFormat::kE4M3) raw.k_scale = 0.3f, raw.v_scale = 0.011f;
    weights = pack_attention(Layout::kTile16, raw);
    cpu_test::fill(x.view());
    cpu_test::fill(k_cache.view());
    cpu_test::fill(v_cache.view());
    std::vector<int32_t> blocks(static_cast<size_t>(blocks_of(p, lengths)));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), cpu_test::random());
    auto next = blocks.begin();
    int row = 0;
    for (const auto& [ctx, q] : lengths) {
      const int n = (ctx + q + p.block_size - 1) / p.block_size;
      tables.emplace_back(next, next + n);
      next += n;
      sequences.push_back({.first_row = row, .q_len = q, .ctx_len = ctx});
      row += q;
    }
    for (size_t i = 0; i < sequences.size(); ++i) sequences[i].block_table = tables[i].data();
    batch = {row, p.block_size, sequences};
  }
};

struct Output {
  std::vector<uint8_t> partial, k, v;
  std::vector<float> values;
};

Output run(const Backend<AttentionOp>& backend, const Tactic& tactic, const Step& s, int members) {
  Guarded k(s.k_cache.view().dtype, s.k_cache.view().shape), v(s.v_cache.view().dtype, s.v_cache.view().shape);
  std::memcpy(k.view().data, s.k_cache.view().data, k.view().bytes());
  std::memcpy(v.view().data, s.v_cache.view().data, v.view().bytes());
  Guarded partial(DType::kF32, {s.batch.rows, s.p.hidden});
  ThreadTeam team(members);
  Stream stream{&team};
  const size_t bytes = backend.workspace(tactic, s.p, s.batch.rows, members);
  Guarded ws(DType::kU8, {static_cast<int64_t>(bytes)});
  AttentionArgs args{s.p,      &s.batch, s.x.view(),     &s.weights,
                     k.view(), v.view(), partial.view(), {ws.view().as<uint8_t>(), bytes}};
  check_args(args);
  backend.run(tactic, args, stream);
  for (const Guarded* g : {&k, &v, &partial, &ws}) g->expect_bands();
  const float* f = partial.view().as<float>();
  return {partial.bytes(), k.bytes(), v.bytes(), {f, f + partial.view().shape.elements()}};
}

struct Method {
  const Backend<AttentionOp>* backend;
  Tactic tactic;
};

class AttentionCpu : public testing::TestWithParam<Method> {
 protected:
  static Output run_method(const Step& step, int members) {
    return run(*GetParam().backend, GetParam().tactic, step, members);
  }
  void check(const AttentionProblem& p, const std::vector<std::pair<int, int>>& lengths) {
    SCOPED_TRACE(p.text());
    const Step step(p, lengths);
    const Output got = run_method(step, 2), want = run(attention_reference, {}, step, 2);
    double squares = 0;
    for (const float f : want.values) squares += double{f} * f;
    const double rms = std::sqrt(squares / static_cast<double>(want.values.size()));
    // With bfloat16 a rounded value may fall the other way: one step of one input of the output product.
    // Where q and the probabilities are rounded as well, the judge alone is exact.
    const bool rounds = GetParam().backend->numerics.p == Rounds::kBf16;
    const double bound = (p.activation == Activation::kBf16 ? rounds ? 5e-2 : 2e-2 : 2e-5) * rms;
    for (size_t i = 0; i < want.values.size(); ++i)
      ASSERT_NEAR(got.values[i], want.values[i], bound)
          << "row " << i / static_cast<size_t>(p.hidden) << " column " << i % static_cast<size_t>(p.hidden);
    const auto cache = [&](const std::vector<uint8_t>& a, size_t i) {
      if (p.cache == CacheFormat::kE4M3) return e4m3_to_float(a[i]);
      return p.activation == Activation::kBf16 ? bf16_to_float(reinterpret_cast<const uint16_t*>(a.data())[i])
                                               : reinterpret_cast<const float*>(a.data())[i];
    };
    for (size_t i = 0; i < got.k.size() / size_of(p.cache_dtype()); ++i) {
      const double step_of = p.cache_dtype() == DType::kE4M3   ? 0.126  // one step of the format
                             : p.cache_dtype() == DType::kBF16 ? 0.0079
                                                               : 2e-5;
      ASSERT_NEAR(cache(got.k, i), cache(want.k, i), step_of * (std::abs(cache(want.k, i)) + 0.3)) << "k " << i;
      ASSERT_NEAR(cache(got.v, i), cache(want.v, i), step_of * (std::abs(cache(want.v, i)) + 0.3)) << "v " << i;
    }
  }
};

// Lengths around a tile's rows and its 64 keys.
const std::vector<std::pair<int, int>> kTiles = {{0, 64}, {63, 33}, {1, 1}, {127, 66}, {48, 16}, {64, 1}, {130, 17}};

const std::vector<std::pair<int, int>> kRagged = {{0, 1}, {0, 19}, {15, 1}, {16, 1}, {17, 5}, {63, 2}, {70, 33}};

TEST_P(AttentionCpu, RaggedBatchAgainstTheReference) {
  for (const Activation activation : {Activation::kF32, Activation::kBf16}) {
    AttentionProblem p{.hidden = 48,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 32,
                       .rotary_dim = 32,
                       .qkv_format = WeightFormat::kNvfp4,
                       .out_format = WeightFormat::kNvfp4,
                       .activation = activation};
    check(p, kRagged);
    p.gate = true;
    p.norm_plus_one = true;
    p.rotary_dim = 8;
    p.out_format = WeightFormat::kFp8;
    check(p, kRagged);
    p.cache = CacheFormat::kE4M3;
    check(p, kRagged);
    check(p, kTiles);
    p.cache = CacheFormat::kActivation;
    check(p, kTiles);
  }
}

TEST_P(AttentionCpu, OddShapes) {
  AttentionProblem p{.hidden = 21,
                     .heads = 3,
                     .kv_heads = 1,
                     .head_dim = 20,
                     .rotary_dim = 6,
                     .activation = Activation::kF32,
                     .block_size = 5};
  check(p, kRagged);
  p.heads = 40, p.kv_heads = 2, p.head_dim = 16, p.rotary_dim = 0,
  p.qk_norm = false;  // 20 heads share a key/value head
  check(p, kRagged);
  p.heads = 70, p.kv_heads = 1;  // more than a tile holds
  check(p, kTiles);
  p.heads = p.kv_heads = 1, p.block_size = 64;
  check(p, {{0, 1}});
  p.cache = CacheFormat::kE4M3, p.head_dim = 13;
  check(p, {{0, 1}, {90, 1}});
}

TEST_P(AttentionCpu, ARowDoesNotDependOnItsNeighboursNorOnThreads) {
  const AttentionProblem p{.hidden = 32, .heads = 4, .kv_heads = 2, .head_dim = 32, .rotary_dim = 16, .gate = true};
  const Step step(p, kRagged);
  const Output one = run_method(step, 1);
  for (const int members : {1, 2, 5}) EXPECT_EQ(one.partial, run_method(step, members).partial);
  // NaN in the last sequence and in the last row of another: all other rows stay as they were.
  const int last = step.sequences[1].first_row + step.sequences[1].q_len - 1, tail = step.sequences.back().first_row;
  for (int k = 0; k < p.hidden; ++k)
    for (int row = 0; row < step.batch.rows; ++row)
      if (row == last || row >= tail) cpu_test::set(step.x.view(), row * p.hidden + k, NAN);
  const Output after = run_method(step, 2);
  for (int row = 0; row < tail; ++row) {
    if (row == last) continue;
    EXPECT_EQ(std::memcmp(after.values.data() + row * p.hidden, one.values.data() + row * p.hidden, sizeof(float) * 32),
              0)
        << "row " << row;
  }
}

std::vector<Method> methods() {
  std::vector<Method> all;
  for (const Backend<AttentionOp>* b : {&attention_cpu, &attention_cpu_tiled})
    for (const Tactic& t : b->tactics({}, this_cpu())) all.push_back({b, t});
  for (const Tactic& t : attention_cpu_tiled.tactics({}, Device{.isas = {Isa::kScalar}}))
    all.push_back({&attention_cpu_tiled, t});
  return all;
}
std::string name_of_method(const testing::TestParamInfo<Method>& info) {
  std::string name = fmt::format("{}_{}", info.param.backend->name, info.param.tactic.name);
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, AttentionCpu, testing::ValuesIn(methods()), name_of_method);

TEST(AttentionCpuSupports, RefusesWithValues) {
  const Verdict v = attention_cpu.supports({.hidden = 32, .heads = 3, .kv_heads = 2, .head_dim = 16}, this_cpu());
  EXPECT_EQ(v.code, VerdictCode::kShapeUnsupported);
  EXPECT_EQ(v.have, "3 query heads, 2 kv heads");
  EXPECT_EQ(
      attention_cpu.supports({.hidden = 32, .heads = 2, .kv_heads = 2, .head_dim = 16, .rotary_dim = 32}, this_cpu())
          .have,
      "rotary 32 of 16");
  EXPECT_EQ(
      attention_cpu.supports({.hidden = 32, .heads = 2, .kv_heads = 2, .head_dim = 16}, Device{.name = "sm90"}).code,
      VerdictCode::kIsaMissing);
}

}  // namespace
}  // namespace mettle
