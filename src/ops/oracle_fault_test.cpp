// The oracles' error terms are neither too lax nor too tight: planted faults are convicted by the element rule, and
// sums in other orders are not. A fault is planted in the weights or arguments that the backend gets; the oracle keeps
// the true ones.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "ops/oracle_test_ops.h"

namespace mettle {
namespace {

using namespace oracle_test;  // the test's own vocabulary

constexpr Activation kActivations[] = {Activation::kBf16, Activation::kF32};

// A copy of a weight whose bytes may be changed.
Weights own(const RawSegments& raw) {
  Weights w;
  for (const RawMatrix& m : raw) {
    RawMatrix c = m;
    w.memory.push_back(std::make_shared<std::vector<uint8_t>>(m.data, m.data + m.rows * m.row_bytes));
    c.data = w.memory.back()->data();
    w.raw.push_back(c);
  }
  return w;
}
void swap_rows(Weights& w, size_t segment, int64_t a, int64_t b, int64_t count) {
  const int64_t bytes = w.raw[segment].row_bytes;
  uint8_t* data = w.memory[segment]->data();
  std::swap_ranges(data + a * bytes, data + (a + count) * bytes, data + b * bytes);
}

// ---- linear ---------------------------------------------------------------------------------------------------------

struct Linear {
  LinearProblem p{.in = 1024, .out = 48, .format = WeightFormat::kNvfp4, .activation = Activation::kBf16};
  Random random{1};
  Weights w = random_weights(p.format, {16, 32}, p.in, random);
  Values x{DType::kBF16, {5, p.in}}, y{DType::kF32, {5, p.out}};
  Linear() { x.fill(random); }
  double worst(const RawSegments& raw) {
    const PackedMatrix packed = pack_tile16(raw);
    run_reference<LinearOp>({.problem = p, .rows = 5, .x = x.view, .weight = &packed, .y = y.view, .ws = {}}, 5);
    return worst_element(oracle::linear(p, w.raw, x.view, all_of(5), {}), y.view).sigmas;
  }
};

TEST(OracleFault, Linear) {
  Linear l;
  EXPECT_LE(l.worst(l.w.raw), kHealthy);
  l.y.f32()[77] *= 1.001f;  // one element, 0.1 %
  const Worst w = worst_element(oracle::linear(l.p, l.w.raw, l.x.view, all_of(5), {}), l.y.view);
  EXPECT_GT(w.sigmas, kLimit);
  EXPECT_EQ(w.row, 77 / l.p.out);
  EXPECT_EQ(w.col, 77 % l.p.out);

  Weights code = own(l.w.raw);
  (*code.memory[1])[100] ^= 0x08;  // the sign of one weight in 49,152
  EXPECT_GT(l.worst(code.raw), kLimit);
  RawSegments scale = l.w.raw;
  scale[0].global_scale *= 1.001f;
  EXPECT_GT(l.worst(scale), kLimit);
  Weights rows = own(l.w.raw);
  swap_rows(rows, 1, 3, 4, 1);
  EXPECT_GT(l.worst(rows.raw), kLimit);
}

// A row of weights times x with the partial sums that `order` makes, all in float32.
float truncated(double v) {
  const float f = static_cast<float>(v);
  return std::fabs(static_cast<double>(f)) > std::fabs(v) ? std::nextafter(f, 0.f) : f;
}

TEST(OracleFault, OtherOrdersOfSummationAreHealthy) {
  double worst = 0;
  for (uint32_t seed = 0; seed < 20; ++seed)
    for (const int64_t k : {48, 1024, 4096}) {
      Random random(seed);
      const LinearProblem p{
          .in = static_cast<int>(k), .out = 24, .format = WeightFormat::kNvfp4, .activation = Activation::kBf16};
      Weights w = random_weights(p.format, {24}, k, random);
      w.raw[0].global_scale = 1;  // the sum alone
      Values x(DType::kBF16, {2, k}), y(DType::kF32, {2, 24});
      x.fill(random);
      const Expected e = oracle::linear(p, w.raw, x.view, all_of(2), {});
      using Order = std::function<float(const std::vector<float>&)>;
      const Order orders[] = {[](const std::vector<float>& t) { return std::accumulate(t.rbegin(), t.rend(), 0.f); },
                              [](const std::vector<float>& t) {  // tensor core: sums of 16 added with truncation
                                float sum = 0;
                                for (size_t i = 0; i < t.size(); i += 16)
                                  sum = truncated(std::accumulate(t.begin() + static_cast<std::ptrdiff_t>(i),
                                                                  t.begin() + static_cast<std::ptrdiff_t>(i + 16),
                                                                  static_cast<double>(sum)));
                                return sum;
                              },
                              [](std::vector<float> t) {  // tree
                                for (size_t n = t.size(); n > 1; n = (n + 1) / 2)
                                  for (size_t i = 0; i < (n + 1) / 2; ++i)
                                    t[i] = 2 * i + 1 < n ? t[2 * i] + t[2 * i + 1] : t[2 * i];
                                return t[0];
                              },
                              [](const std::vector<float>& t) {  // eight lanes
                                float lanes[8] = {};
                                for (size_t i = 0; i < t.size(); ++i) lanes[i % 8] += t[i];
                                return std::accumulate(lanes, lanes + 8, 0.f);
                              }};
      for (const Order& order : orders) {
        for (int64_t i = 0; i < 48; ++i) {
          std::vector<float> terms(static_cast<size_t>(k));
          for (int64_t c = 0; c < k; ++c)
            terms[static_cast<size_t>(c)] =
                static_cast<float>(w.raw[0].at(i % 24, c) * value_at(x.view, i / 24 * k + c));
          y.f32()[i] = order(terms);
        }
        worst = std::max(worst, worst_element(e, y.view).sigmas);
      }
    }
  EXPECT_LE(worst, kHealthy);
  EXPECT_GT(worst, 0);
  RecordProperty("worst", std::to_string(worst));
}

// ---- moe ------------------------------------------------------------------------------------------------------------

MoeProblem moe_problem(Activation activation) {
  return {.hidden = 128,
          .experts = 8,
          .top_k = 3,
          .width = 64,
          .shared_width = 64,
          .shared_gate = true,
          .activation = activation};
}

TEST(OracleFault, Moe) {
  for (const Activation activation : kActivations) {
    Random random(7);
    MoeSetup s(moe_problem(activation), 12, random);
    const auto worst = [&](const RawMoe& raw, const MoeProblem& p) {
      const MoeWeights packed = pack_moe(Layout::kTile16, raw);
      MoeArgs args = s.args();
      args.problem = p;
      args.weights = &packed;
      run_reference<MoeOp>(args, s.rows());
      return std::max(worst_element(s.expected(), s.partial.view).sigmas,
                      worst_element(oracle::route(s.p, s.raw, s.x.view, all_of(s.rows()), s.ids.data(), {}).weights,
                                    s.weights.data())
                          .sigmas);
    };
    EXPECT_LE(worst(s.raw, s.p), kHealthy);
    const auto used = static_cast<size_t>(s.ids[0]);
    s.partial.f32()[5 * 128 + 17] *= 1.01f;
    const Worst one = worst_element(s.expected(), s.partial.view);
    EXPECT_GT(one.sigmas, kLimit);
    EXPECT_EQ(one.row, 5);
    EXPECT_EQ(one.col, 17);

    MoeProblem p = s.p;
    p.shared_width = 0;
    EXPECT_GT(worst(s.raw, p), kLimit) << "shared expert left out";
    p = s.p;
    p.shared_gate = false;
    EXPECT_GT(worst(s.raw, p), kLimit) << "shared gate left out";
    p = s.p;
    p.renormalise = false;
    EXPECT_GT(worst(s.raw, p), kLimit) << "weights not renormalised";
    RawMoe raw = s.raw;
    std::swap(raw.experts[used].gate_up[0], raw.experts[used].gate_up[1]);
    EXPECT_GT(worst(raw, s.p), kLimit) << "gate and up swapped";
    raw = s.raw;
    raw.experts[used].down[0].global_scale *= 1.01f;
    EXPECT_GT(worst(raw, s.p), kLimit) << "one expert 1 % off";
    raw = s.raw;
    std::swap(raw.experts[used], raw.experts[(used + 1) % 8]);
    EXPECT_GT(worst(raw, s.p), kLimit) << "another expert's weights";
    raw = s.raw;
    std::swap(raw.shared.gate_up[0], raw.shared.gate_up[1]);
    EXPECT_GT(worst(raw, s.p), kLimit) << "shared gate and up swapped";
    raw = s.raw;
    raw.experts[used].gate_up[1].global_scale *= 1.002f;
    EXPECT_GT(worst(raw, s.p), kLimit) << "up of one expert 0.2 % off";
  }
}

TEST(OracleFault, RoundingsThatAreNotDeclared) {
  Random random(8);
  MoeSetup s(moe_problem(Activation::kBf16), 12, random);
  // The same values as float32 activations: h stays unrounded.
  MoeSetup f(moe_problem(Activation::kF32), 12, random);
  for (int64_t i = 0; i < s.x.view.shape.elements(); ++i) f.x.set(i, static_cast<float>(value_at(s.x.view, i)));
  MoeArgs args = f.args();
  args.weights = &s.packed;
  run_reference<MoeOp>(args, 12);
  EXPECT_GT(worst_element(oracle::moe(s.p, s.raw, s.x.view, all_of(12), f.ids.data(), {}), f.partial.view).sigmas,
            kLimit);
  oracle::Options declared;
  declared.numerics.h = Rounds::kF32;
  EXPECT_LE(worst_element(oracle::moe(s.p, s.raw, s.x.view, all_of(12), f.ids.data(), declared), f.partial.view).sigmas,
            kHealthy);
  run_reference<MoeOp>(s.args(), 12);
  EXPECT_GT(worst_element(oracle::moe(s.p, s.raw, s.x.view, all_of(12), s.ids.data(), declared), s.partial.view).sigmas,
            kLimit);
  declared = {};
  declared.numerics.gate_up = Rounds::kBf16;
  EXPECT_GT(worst_element(oracle::moe(s.p, s.raw, s.x.view, all_of(12), s.ids.data(), declared), s.partial.view).sigmas,
            kLimit);
}

// ---- attention ------------------------------------------------------------------------------------------------------

AttentionProblem attention_problem(Activation activation) {
  return {.hidden = 96,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 32,
          .rotary_dim = 16,
          .gate = true,
          .norm_plus_one = true,
          .activation = activation,
          .block_size = 4};
}

TEST(OracleFault, Attention) {
  for (const Activation activation : kActivations) {
    Random random(9);
    AttentionSetup s(attention_problem(activation), {{9, 0}, {1, 30}, {5, 11}}, random);
    const oracle::AppendExpected append = oracle::attention_append(s.p, s.raw, s.batch.batch, s.x.view, {});
    const auto worst = [&](const std::function<void(RawAttention&, AttentionArgs&)>& fault) {
      RawAttention raw = s.raw;
      AttentionArgs args = s.args();
      fault(raw, args);
      const AttentionWeights packed = pack_attention(Layout::kTile16, raw);
      args.weights = &packed;
      run_reference<AttentionOp>(args, s.rows());
      return std::max({worst_element(s.expected(), s.partial.view).sigmas, s.worst_appended(append.k, s.k_cache).sigmas,
                       s.worst_appended(append.v, s.v_cache).sigmas});
    };
    EXPECT_LE(worst([](RawAttention&, AttentionArgs&) {}), kHealthy);
    s.partial.f32()[3 * 96 + 5] *= 1.01f;
    EXPECT_GT(worst_element(s.expected(), s.partial.view).sigmas, kLimit);
    Weights heads = own(s.raw.qkv);
    swap_rows(heads, 0, 0, 64, 64);
    EXPECT_GT(worst([&](RawAttention& r, AttentionArgs&) { r.qkv = heads.raw; }), kLimit) << "two query heads swapped";
    Weights kv = own(s.raw.qkv);
    swap_rows(kv, 2, 0, 32, 32);
    EXPECT_GT(worst([&](RawAttention& r, AttentionArgs&) { r.qkv = kv.raw; }), kLimit) << "two value heads swapped";
    Weights gates = own(s.raw.qkv);
    swap_rows(gates, 0, 32, 96, 32);
    EXPECT_GT(worst([&](RawAttention& r, AttentionArgs&) { r.qkv = gates.raw; }), kLimit) << "gate of another head";
    Weights halves = own(s.raw.qkv);
    swap_rows(halves, 0, 0, 32, 32);
    EXPECT_GT(worst([&](RawAttention& r, AttentionArgs&) { r.qkv = halves.raw; }), kLimit) << "query and gate swapped";
    EXPECT_GT(worst([](RawAttention&, AttentionArgs& a) { a.problem.norm_plus_one = false; }), kLimit) << "w for 1 + w";
    EXPECT_GT(worst([](RawAttention&, AttentionArgs& a) { a.problem.eps = 1e-3f; }), kLimit) << "eps";
    EXPECT_GT(worst([](RawAttention& r, AttentionArgs&) { r.inv_freq[1] *= 1.001f; }), kLimit) << "theta";
    EXPECT_GT(worst([](RawAttention& r, AttentionArgs&) { r.q_norm[20] += 0.01f; }), kLimit) << "q norm";
    EXPECT_GT(worst([](RawAttention& r, AttentionArgs&) { r.k_norm[20] += 0.01f; }), kLimit) << "k norm";
    // Position, mask, block table: through the batch that the backend gets.
    std::vector<BatchSequence> sequences = s.batch.sequences;
    std::vector<int32_t> table = s.batch.tables[1];
    table[1] = s.batch.tables[0][0];
    sequences[1].block_table = table.data();
    const Batch batch{s.rows(), s.p.block_size, sequences};
    EXPECT_GT(worst([&](RawAttention&, AttentionArgs& a) { a.batch = &batch; }), kLimit) << "another block";
    sequences = s.batch.sequences;
    sequences[2].ctx_len = 10;
    EXPECT_GT(worst([&](RawAttention&, AttentionArgs& a) { a.batch = &batch; }), kLimit) << "one position too few";
  }
}

// A backend whose probabilities are bf16 before the product with V, written out: healthy where it is declared, not
// else.
TEST(OracleFault, ProbabilitiesInBf16) {
  double declared_worst = 0, undeclared_worst = 0;
  for (uint32_t seed = 0; seed < 10; ++seed) {
    Random random(600 + seed);
    AttentionProblem p = attention_problem(Activation::kBf16);
    p.gate = false;
    AttentionSetup s(p, {{9, 0}, {1, 30}, {5, 11}}, random);
    run_reference<AttentionOp>(s.args(), s.rows());
    // Queries come from the oracle as if they were keys.
    AttentionProblem as_keys = p;
    as_keys.kv_heads = p.heads;
    RawAttention queries = s.raw;
    queries.qkv = {s.raw.qkv[0], s.raw.qkv[0], s.raw.qkv[0]};
    queries.k_norm = s.raw.q_norm;
    const Expected q = oracle::attention_append(as_keys, queries, s.batch.batch, s.x.view, {}).k;
    Values core(DType::kBF16, {s.rows(), p.heads * p.head_dim});
    for (const BatchSequence& sequence : s.batch.sequences)
      for (int i = 0; i < sequence.q_len; ++i)
        for (int h = 0; h < p.heads; ++h) {
          const int64_t row = sequence.first_row + i, first = (row * p.heads + h) * p.head_dim;
          std::vector<double> z, o(static_cast<size_t>(p.head_dim));
          const auto cached = [&](const Values& cache, int position, int d) {
            const int64_t line = static_cast<int64_t>(sequence.block_table[position / p.block_size]) * p.block_size +
                                 position % p.block_size;
            return value_at(cache.view, (line * p.kv_heads + h / 2) * p.head_dim + d);
          };
          for (int j = 0; j <= sequence.ctx_len + i; ++j) {
            double dot = 0;
            for (int d = 0; d < p.head_dim; ++d)
              dot += q.value[static_cast<size_t>(first + d)] * cached(s.k_cache, j, d);
            z.push_back(dot / std::sqrt(static_cast<double>(p.head_dim)));
          }
          const double top = *std::max_element(z.begin(), z.end());
          double sum = 0;
          for (size_t j = 0; j < z.size(); ++j) {
            const double e = std::exp(z[j] - top);
            sum += e;
            for (int d = 0; d < p.head_dim; ++d)
              o[static_cast<size_t>(d)] += static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(e)))) *
                                           cached(s.v_cache, static_cast<int>(j), d);
          }
          for (int d = 0; d < p.head_dim; ++d) core.set(first + d, static_cast<float>(o[static_cast<size_t>(d)] / sum));
        }
    const LinearProblem out{.in = p.heads * p.head_dim, .out = p.hidden, .format = p.out_format};
    run_reference<LinearOp>(
        {.problem = out, .rows = s.rows(), .x = core.view, .weight = &s.packed.out, .y = s.partial.view, .ws = {}},
        s.rows());
    oracle::Options declared;
    declared.numerics.p = Rounds::kBf16;
    const auto judge = [&](const oracle::Options& options) {
      return worst_element(oracle::attention(p, s.raw, s.batch.batch, s.x.view, s.k_cache.view, s.v_cache.view,
                                             all_of(s.rows()), options),
                           s.partial.view)
          .sigmas;
    };
    declared_worst = std::max(declared_worst, judge(declared));
    undeclared_worst = std::max(undeclared_worst, judge({}));
  }
  EXPECT_LE(declared_worst, kHealthy);
  EXPECT_GT(undeclared_worst, kLimit);
  RecordProperty("worst", std::to_string(declared_worst));
}

// ---- gdn ------------------------------------------------------------------------------------------------------------

TEST(OracleFault, Gdn) {
  for (const Activation activation : kActivations) {
    Random random(10);
    const GdnProblem p{.hidden = 96, .key_heads = 2, .value_heads = 4, .dk = 32, .dv = 32, .activation = activation};
    GdnSetup s(p, {{20, 0}, {1, 9}, {66, 5}}, random);
    const oracle::GdnExpected e = s.expected();
    const Values conv_before = s.conv_state.copy(), state_before = s.state.copy();
    const auto judge = [&] {
      double worst = worst_element(e.partial, s.partial.view).sigmas;
      for (size_t i = 0; i < s.batch.sequences.size(); ++i) {
        worst = std::max(worst, worst_element(e.state[i], s.state_of(s.batch.sequences[i].state_out)).sigmas);
        worst = std::max(worst, worst_element(e.conv[i], s.conv_of(s.batch.sequences[i].state_out)).sigmas);
      }
      return worst;
    };
    const auto worst = [&](const std::function<void(RawGdn&, GdnArgs&)>& fault) {
      std::memcpy(s.conv_state.f32(), conv_before.view.data, conv_before.view.bytes());
      std::memcpy(s.state.f32(), state_before.view.data, state_before.view.bytes());
      RawGdn raw = s.raw;
      GdnArgs args = s.args();
      fault(raw, args);
      const GdnWeights packed = pack_gdn(Layout::kTile16, raw);
      args.weights = &packed;
      run_reference<GdnOp>(args, s.rows());
      return judge();
    };
    EXPECT_LE(worst([](RawGdn&, GdnArgs&) {}), kHealthy);
    s.state_of(2)[1234] *= 1.01f;
    EXPECT_GT(judge(), kLimit) << "one element of a state";
    EXPECT_LE(worst([](RawGdn&, GdnArgs&) {}), kHealthy);
    s.conv_of(1)[7] *= 1.001f;
    EXPECT_GT(judge(), kLimit) << "one element of a convolution state";
    EXPECT_LE(worst([](RawGdn&, GdnArgs&) {}), kHealthy);
    for (int64_t i = 0; i < 4 * 32 * 32; ++i) s.state_of(0)[i] = bf16_to_float(float_to_bf16(s.state_of(0)[i]));
    EXPECT_GT(judge(), kLimit) << "state in bf16";
    EXPECT_GT(worst([](RawGdn& r, GdnArgs&) { std::swap(r.ba[0], r.ba[1]); }), kLimit) << "beta and decay swapped";
    EXPECT_GT(worst([](RawGdn& r, GdnArgs&) { r.dt_bias[2] += 0.01f; }), kLimit) << "dt_bias";
    EXPECT_GT(worst([](RawGdn& r, GdnArgs&) { r.a_log[1] += 0.01f; }), kLimit) << "a_log";
    EXPECT_GT(worst([](RawGdn& r, GdnArgs&) { std::swap(r.conv[0], r.conv[3]); }), kLimit) << "taps of one channel";
    EXPECT_GT(worst([](RawGdn& r, GdnArgs&) {
                for (float& w : r.norm) w += 1;
              }),
              kLimit)
        << "1 + w for w";
    EXPECT_GT(worst([](RawGdn&, GdnArgs& a) { a.problem.eps = 1e-3f; }), kLimit) << "eps of the gated norm";
    Weights values = own(s.raw.qkv);
    swap_rows(values, 2, 0, 32, 32);
    EXPECT_GT(worst([&](RawGdn& r, GdnArgs&) { r.qkv = values.raw; }), kLimit) << "two value heads swapped";
    Weights keys = own(s.raw.qkv);
    swap_rows(keys, 1, 0, 32, 32);
    EXPECT_GT(worst([&](RawGdn& r, GdnArgs&) { r.qkv = keys.raw; }), kLimit)
        << "two key heads swapped: value heads by modulo";
    Weights gates = own(s.raw.z);
    swap_rows(gates, 0, 32, 96, 32);
    EXPECT_GT(worst([&](RawGdn& r, GdnArgs&) { r.z = gates.raw; }), kLimit) << "z of another head";
    std::vector<BatchSequence> sequences = s.batch.sequences;
    sequences[2].state_in = 3;  // a slot that no sequence uses
    const Batch batch{s.rows(), 16, sequences};
    EXPECT_GT(worst([&](RawGdn&, GdnArgs& a) { a.batch = &batch; }), kLimit) << "state of another slot";
  }
}

// ---- join -----------------------------------------------------------------------------------------------------------

TEST(OracleFault, Join) {
  Random random(11);
  const JoinProblem p{.hidden = 160, .ranks = 2, .plus_one = true};
  Values before(DType::kF32, {7, 160}), a(DType::kF32, {7, 160}), b(DType::kF32, {7, 160}), x(DType::kBF16, {7, 160});
  before.fill(random, 0.01f);
  a.fill(random, 0.01f);
  b.fill(random, 0.01f);
  const std::vector<float> weight = random_vector(160, random, 0, 0.1f);
  const float* partials[] = {a.f32(), b.f32()};
  const Expected residual = oracle::join_residual(p, before.view, partials, {});
  const auto worst = [&](const std::function<void(JoinArgs&)>& fault) {
    Values after = before.copy();
    JoinArgs args{
        .problem = p, .rows = 7, .residual = after.view, .partials = partials, .weight = weight.data(), .x = x.view};
    fault(args);
    run_reference<JoinOp>(args, 7);
    return std::max(worst_element(residual, after.view).sigmas,
                    worst_element(oracle::join_x(p, after.view, weight.data(), {}), x.view).sigmas);
  };
  EXPECT_LE(worst([](JoinArgs&) {}), kHealthy);
  EXPECT_GT(worst([](JoinArgs& j) { j.problem.plus_one = false; }), kLimit);
  EXPECT_GT(worst([](JoinArgs& j) { j.problem.eps = 2e-6f; }), kLimit);
  EXPECT_GT(worst([&](JoinArgs& j) { j.problem.ranks = 1, j.partials = {partials, 1}; }), kLimit);
}

// ---- composites in another order ------------------------------------------------------------------------------------

// A bf16 weight with its columns, or its rows, in another order.
Weights reorder(const RawSegments& raw, const std::vector<int>& columns, const std::vector<int>& rows = {}) {
  Weights w = own(raw);
  for (size_t i = 0; i < raw.size(); ++i)
    for (int64_t r = 0; r < raw[i].rows; ++r)
      for (int64_t c = 0; c < raw[i].cols; ++c) {
        const int64_t from_row = rows.empty() ? r : rows[static_cast<size_t>(r)],
                      from_col = columns.empty() ? c : columns[static_cast<size_t>(c)];
        std::memcpy(w.memory[i]->data() + r * raw[i].row_bytes + c * 2,
                    raw[i].data + from_row * raw[i].row_bytes + from_col * 2, 2);
      }
  return w;
}
std::vector<int> shuffled(int count, Random& random) {
  std::vector<int> order = all_of(count);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}
Values reorder(const Values& x, const std::vector<int>& columns) {
  Values out = x.copy();
  const auto cols = static_cast<int64_t>(columns.size());
  for (int64_t i = 0; i < x.view.shape.elements(); ++i)
    out.set(i, static_cast<float>(value_at(x.view, i / cols * cols + columns[static_cast<size_t>(i % cols)])));
  return out;
}

TEST(OracleFault, CompositesInAnotherOrderAreHealthy) {
  constexpr WeightFormat kBf16 = WeightFormat::kBf16;
  double worst = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Activation activation = kActivations[seed % 2];
    Random random(500 + seed);
    const std::vector<int> hidden = shuffled(256, random), width = shuffled(48, random);
    std::vector<Weights> memory;
    const auto keep = [&](Weights w) {
      memory.push_back(std::move(w));
      return memory.back().raw;
    };
    {
      MoeSetup s({.hidden = 256,
                  .experts = 6,
                  .top_k = 3,
                  .width = 48,
                  .shared_width = 48,
                  .shared_gate = true,
                  .format = kBf16,
                  .shared_format = kBf16,
                  .activation = activation},
                 4, random);
      RawMoe raw = s.raw;
      raw.router = keep(reorder(raw.router, hidden));
      raw.shared_gate = keep(reorder(raw.shared_gate, hidden));
      for (RawExpert* e : {&raw.shared, &raw.experts[0], &raw.experts[1], &raw.experts[2], &raw.experts[3],
                           &raw.experts[4], &raw.experts[5]}) {
        e->gate_up = keep(reorder(e->gate_up, hidden, width));
        e->down = keep(reorder(e->down, width));
      }
      const Values x = reorder(s.x, hidden);
      const MoeWeights packed = pack_moe(Layout::kTile16, raw);
      MoeArgs args = s.args();
      args.x = x.view;
      args.weights = &packed;
      run_reference<MoeOp>(args, 4);
      worst = std::max(worst, worst_element(s.expected(), s.partial.view).sigmas);
    }
    {
      AttentionSetup s({.hidden = 256,
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 32,
                        .rotary_dim = 16,
                        .gate = true,
                        .activation = activation},
                       {{3, 40}, {5, 0}}, random);
      const oracle::AppendExpected append = oracle::attention_append(s.p, s.raw, s.batch.batch, s.x.view, {});
      RawAttention raw = s.raw;
      raw.qkv = keep(reorder(raw.qkv, hidden));
      const Values x = reorder(s.x, hidden);
      const AttentionWeights packed = pack_attention(Layout::kTile16, raw);
      AttentionArgs args = s.args();
      args.x = x.view;
      args.weights = &packed;
      run_reference<AttentionOp>(args, s.rows());
      worst = std::max({worst, worst_element(s.expected(), s.partial.view).sigmas,
                        s.worst_appended(append.k, s.k_cache).sigmas, s.worst_appended(append.v, s.v_cache).sigmas});
    }
    {
      GdnSetup s({.hidden = 256, .key_heads = 2, .value_heads = 4, .dk = 32, .dv = 32, .activation = activation},
                 {{9, 4}, {3, 0}}, random);
      const oracle::GdnExpected e = s.expected();
      RawGdn raw = s.raw;
      raw.qkv = keep(reorder(raw.qkv, hidden));
      raw.z = keep(reorder(raw.z, hidden));
      raw.ba = keep(reorder(raw.ba, hidden));
      const Values x = reorder(s.x, hidden);
      const GdnWeights packed = pack_gdn(Layout::kTile16, raw);
      GdnArgs args = s.args();
      args.x = x.view;
      args.weights = &packed;
      run_reference<GdnOp>(args, s.rows());
      worst = std::max(worst, worst_element(e.partial, s.partial.view).sigmas);
      for (size_t i = 0; i < 2; ++i)
        worst = std::max(worst, worst_element(e.state[i], s.state_of(s.batch.sequences[i].state_out)).sigmas);
    }
  }
  EXPECT_LE(worst, kHealthy);
  EXPECT_GT(worst, 0);
  RecordProperty("worst", std::to_string(worst));
}

}  // namespace
}  // namespace mettle
