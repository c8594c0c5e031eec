// gdn on the CPU: every instruction set and method against the reference backend.
#include <fmt/format.h>

#include <algorithm>

#include "ops/cpu/cpu_test_support.h"
#include "ops/gdn.h"

namespace mettle {

extern const Backend<GdnOp> gdn_cpu, gdn_cpu_chunked, gdn_reference;

namespace {

using cpu_test::Guarded;

struct Step {
  GdnProblem p;
  GdnWeights weights;
  std::vector<BatchSequence> sequences;
  Batch batch;
  Guarded x, conv_state, state;

  Step(const GdnProblem& problem, std::vector<BatchSequence> list, int rows)
      : p(problem),
        sequences(std::move(list)),
        batch{rows, 16, sequences},
        x(dtype_of(p.activation), {rows, p.hidden}),
        conv_state(DType::kF32, {kSlots, p.channels(), 3}),
        state(DType::kF32, {kSlots, p.value_heads, p.dk, p.dv}) {
    cpu_test::RandomMatrix qkv(p.in_format, p.channels(), p.hidden),
        z(p.in_format, int64_t{p.value_heads} * p.dv, p.hidden), ba(p.ba_format, 2 * p.value_heads, p.hidden),
        out(p.out_format, p.hidden, int64_t{p.value_heads} * p.dv);
    RawGdn raw{{qkv.raw}, {z.raw}, {ba.raw}, {out.raw}};
    for (int i = 0; i < p.channels() * 4; ++i) raw.conv.push_back(0.5f * cpu_test::normal());
    for (int i = 0; i < p.value_heads; ++i) {
      raw.a_log.push_back(0.3f * cpu_test::normal() - 1);
      raw.dt_bias.push_back(cpu_test::normal());
    }
    for (int i = 0; i < p.dv; ++i) raw.norm.push_back(1 + 0.3f * cpu_test::normal());
    weights = pack_gdn(Layout::kTile16, raw);
    for (const Guarded* g : {&x, &conv_state, &state}) cpu_test::fill(g->view());
  }
  static constexpr int kSlots = 6;
};

struct Output {
  std::vector<uint8_t> bytes;  // partial, states
  std::vector<float> partial, conv_state, state;
};

Output run(const Backend<GdnOp>& backend, const Tactic& tactic, const Step& s, int members) {
  Guarded conv(DType::kF32, s.conv_state.view().shape), state(DType::kF32, s.state.view().shape),
      partial(DType::kF32, {s.batch.rows, s.p.hidden});
  std::memcpy(conv.view().data, s.conv_state.view().data, conv.view().bytes());
  std::memcpy(state.view().data, s.state.view().data, state.view().bytes());
  ThreadTeam team(members);
  Stream stream{&team};
  const size_t bytes = backend.workspace(tactic, s.p, s.batch.rows, members);
  Guarded ws(DType::kU8, {static_cast<int64_t>(bytes)});
  GdnArgs args{s.p,         &s.batch,     s.x.view(),     &s.weights,
               conv.view(), state.view(), partial.view(), {ws.view().as<uint8_t>(), bytes}};
  check_args(args);
  backend.run(tactic, args, stream);
  for (const Guarded* g : {&conv, &state, &partial, &ws}) g->expect_bands();
  const auto floats = [](const Guarded& g) {
    const float* f = g.view().as<float>();
    return std::vector<float>(f, f + g.view().shape.elements());
  };
  Output out{partial.bytes(), floats(partial), floats(conv), floats(state)};
  for (const Guarded* g : {&conv, &state})
    for (const uint8_t b : g->bytes()) out.bytes.push_back(b);
  return out;
}

// A fresh sequence, one that goes on in place, one that forks into another slot, single rows.
std::vector<BatchSequence> ragged() {
  return {{.first_row = 0, .q_len = 1, .ctx_len = 0, .state_in = -1, .state_out = 0},
          {.first_row = 1, .q_len = 17, .ctx_len = 5, .state_in = 1, .state_out = 1},
          {.first_row = 18, .q_len = 2, .ctx_len = 9, .state_in = 2, .state_out = 3},
          {.first_row = 20, .q_len = 1, .ctx_len = 3, .state_in = 4, .state_out = 4}};
}
constexpr int kRows = 21;

// Sequences around the ends of chunks, fresh and carried.
std::vector<BatchSequence> chunks() {
  return {{.first_row = 0, .q_len = 16, .ctx_len = 0, .state_in = -1, .state_out = 0},
          {.first_row = 16, .q_len = 33, .ctx_len = 5, .state_in = 1, .state_out = 2},
          {.first_row = 49, .q_len = 15, .ctx_len = 9, .state_in = 3, .state_out = 3},
          {.first_row = 64, .q_len = 48, .ctx_len = 0, .state_in = -1, .state_out = 4}};
}
constexpr int kChunkRows = 112;

struct Method {
  const Backend<GdnOp>* backend;
  Tactic tactic;
};

class GdnCpu : public testing::TestWithParam<Method> {
 protected:
  static Output run_method(const Step& step, int members) {
    return run(*GetParam().backend, GetParam().tactic, step, members);
  }
  static void near(const char* what, const std::vector<float>& got, const std::vector<float>& want, double relative) {
    double squares = 0;
    for (const float f : want) squares += double{f} * f;
    const double bound = relative * std::sqrt(squares / static_cast<double>(want.size()));
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], bound + relative * std::abs(want[i])) << what << " " << i;
  }
  static void check(const GdnProblem& p) {
    SCOPED_TRACE(p.text());
    check(Step(p, ragged(), kRows));
    check(Step(p, chunks(), kChunkRows));
  }
  static void check(const Step& step) {
    const GdnProblem& p = step.p;
    const Output got = run_method(step, 2), want = run(gdn_reference, {}, step, 2);
    near("partial", got.partial, want.partial, p.activation == Activation::kBf16 ? 2e-2 : 1e-4);
    near("conv_state", got.conv_state, want.conv_state, 1e-5);
    near("state", got.state, want.state, 5e-5);
  }
};

TEST_P(GdnCpu, RaggedBatchAgainstTheReference) {
  for (const Activation activation : {Activation::kF32, Activation::kBf16}) {
    check({.hidden = 48,
           .key_heads = 2,
           .value_heads = 4,
           .dk = 32,
           .dv = 32,
           .in_format = WeightFormat::kFp8,
           .activation = activation});
    check({.hidden = 32,
           .key_heads = 1,
           .value_heads = 2,
           .dk = 16,
           .dv = 80,
           .in_format = WeightFormat::kNvfp4,
           .out_format = WeightFormat::kNvfp4,
           .activation = activation});
  }
}

TEST_P(GdnCpu, OddShapes) {
  check({.hidden = 19, .key_heads = 3, .value_heads = 3, .dk = 10, .dv = 23, .activation = Activation::kF32});
  check({.hidden = 7, .key_heads = 1, .value_heads = 1, .dk = 1, .dv = 1, .activation = Activation::kF32});
}

TEST_P(GdnCpu, SequencesAndThreadsDoNotMatter) {
  const GdnProblem p{.hidden = 32, .key_heads = 2, .value_heads = 4, .dk = 32, .dv = 64};
  const Step step(p, ragged(), kRows);
  const Output one = run_method(step, 1);
  for (const int members : {1, 2, 5}) EXPECT_EQ(one.bytes, run_method(step, members).bytes);
  for (int k = 0; k < p.hidden; ++k)
    for (const int row : {0, 18, 19}) cpu_test::set(step.x.view(), row * p.hidden + k, NAN);
  const Output after = run_method(step, 2);
  for (int row = 1; row < kRows; ++row) {
    if (row == 18 || row == 19) continue;
    EXPECT_EQ(
        std::memcmp(&after.partial[static_cast<size_t>(row * 32)], &one.partial[static_cast<size_t>(row * 32)], 128), 0)
        << "row " << row;
  }
}

std::vector<Method> methods() {
  std::vector<Method> all;
  for (const Backend<GdnOp>* b : {&gdn_cpu, &gdn_cpu_chunked})
    for (const Tactic& t : b->tactics({}, this_cpu())) all.push_back({b, t});
  for (const Tactic& t : gdn_cpu_chunked.tactics({}, Device{.isas = {Isa::kScalar}}))
    all.push_back({&gdn_cpu_chunked, t});
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, GdnCpu, testing::ValuesIn(methods()), [](const testing::TestParamInfo<Method>& info) {
  std::string name = fmt::format("{}_{}", info.param.backend->name, info.param.tactic.name);
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
});

TEST(GdnCpuSupports, RefusesWithValues) {
  EXPECT_EQ(gdn_cpu.supports({.hidden = 32, .key_heads = 2, .value_heads = 3, .dk = 16, .dv = 16}, this_cpu()).have,
            "3 value heads, 2 key heads");
  EXPECT_EQ(
      gdn_cpu.supports({.hidden = 32, .key_heads = 1, .value_heads = 1, .dk = 16, .dv = 16, .conv = 3}, this_cpu())
          .code,
      VerdictCode::kShapeUnsupported);
}

}  // namespace
}  // namespace mettle
