// moe on the CPU: every backend, instruction set, format and activation against sums in double.
#include <fmt/format.h>

#include <algorithm>

#include "ops/cpu/cpu_test_support.h"
#include "ops/moe.h"

namespace mettle {

extern const Backend<MoeOp> moe_cpu_gemv, moe_cpu_gemm;

namespace {

using cpu_test::Guarded;
using cpu_test::RandomMatrix;

struct Layer {
  MoeProblem p;
  std::vector<RandomMatrix> raw;  // router, gate_up and down of each expert, then of the shared one, shared gate
  MoeWeights packed;

  explicit Layer(const MoeProblem& problem) : p(problem) {
    raw.emplace_back(p.router_format, p.experts, p.hidden);
    for (int e = 0; e <= p.experts; ++e) {
      const bool shared = e == p.experts;
      const int width = shared ? p.shared_width : p.width;
      if (width == 0) continue;
      const WeightFormat format = shared ? p.shared_format : p.format;
      for (const bool up : {true, false}) {
        raw.emplace_back(format, up ? 2 * width : p.hidden, up ? p.hidden : width);
        if (format == WeightFormat::kNvfp4) raw.back().raw.global_scale *= 0.05f;  // gates near the bend of silu
      }
    }
    if (p.shared_gate) raw.emplace_back(p.router_format, 1, p.hidden);
    RawMoe m;
    m.router = {raw[0].raw};
    for (int e = 0; e < p.experts; ++e) m.experts.push_back({{gate_up(e)}, {down(e)}});
    if (p.shared_width > 0) m.shared = {{gate_up(p.experts)}, {down(p.experts)}};
    if (p.shared_gate) m.shared_gate = {raw.back().raw};
    packed = pack_moe(Layout::kTile16, m);
  }
  const RawMatrix& gate_up(int e) const { return raw[static_cast<size_t>(1 + 2 * e)].raw; }
  const RawMatrix& down(int e) const { return raw[static_cast<size_t>(2 + 2 * e)].raw; }
};

struct Result {
  Guarded partial;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

struct Setting {
  const Backend<MoeOp>* backend;
  Tactic tactic;
};

class MoeCpu : public testing::TestWithParam<Setting> {
 protected:
  static Result run(const Layer& layer, const TensorView& x, int rows, int members,
                    const std::vector<int32_t>* given = nullptr) {
    const MoeProblem& p = layer.p;
    const Setting& s = GetParam();
    Result r{Guarded(DType::kF32, {rows, p.hidden}), std::vector<int32_t>(static_cast<size_t>(rows * p.top_k), -1),
             std::vector<float>(static_cast<size_t>(rows * p.top_k), 0.f)};
    if (given != nullptr) {
      r.ids = *given;
      for (size_t i = 0; i < r.weights.size(); ++i) r.weights[i] = 0.25f + 0.5f * static_cast<float>(i % 3);
    }
    ThreadTeam team(members);
    Stream stream{&team};
    const size_t bytes = s.backend->workspace(s.tactic, p, rows, members);
    Guarded ws(DType::kU8, {static_cast<int64_t>(bytes)});
    MoeArgs args{p,
                 rows,
                 {x.data, x.dtype, {rows, p.hidden}},
                 &layer.packed,
                 r.partial.view(),
                 {given != nullptr, r.ids.data(), r.weights.data()},
                 {ws.view().as<uint8_t>(), bytes}};
    check_args(args);
    s.backend->run(s.tactic, args, stream);
    r.partial.expect_bands();
    ws.expect_bands();
    return r;
  }

  // Adds weight * expert(x) to sum, and what rounding may change of it to bound.
  static void add_expert(const Layer& layer, int e, double weight, const TensorView& x, int row,
                         std::vector<double>& sum, std::vector<double>& bound) {
    const MoeProblem& p = layer.p;
    const int width = e == p.experts ? p.shared_width : p.width;
    std::vector<double> h(static_cast<size_t>(width)), jump(h.size());
    const auto in = [&](int64_t k) { return cpu_test::value(x, int64_t{row} * p.hidden + k); };
    for (int i = 0; i < width; ++i) {
      const cpu_test::Sum g = cpu_test::row_product(layer.gate_up(e), i, in),
                          u = cpu_test::row_product(layer.gate_up(e), width + i, in);
      const double t = g.value / (1 + std::exp(-g.value)) * u.value;
      const double error =
          1.1 * g.bound * std::abs(u.value) + g.bound * u.bound + std::abs(g.value) * u.bound + 1e-6 * std::abs(t);
      h[static_cast<size_t>(i)] =
          p.activation == Activation::kBf16 ? bf16_to_float(float_to_bf16(static_cast<float>(t))) : t;
      // A value near a tie may round the other way.
      const double step = std::ldexp(1., std::ilogb(std::max(std::abs(t), 1e-30)) - 7);
      const bool near = std::abs(std::abs(t - h[static_cast<size_t>(i)]) - step / 2) <= error + 1e-7 * std::abs(t);
      jump[static_cast<size_t>(i)] = p.activation == Activation::kBf16 ? (near           ? step
                                                                          : error > step ? error + step
                                                                                         : 0)
                                                                       : error;
    }
    for (int c = 0; c < p.hidden; ++c) {
      const cpu_test::Sum y =
          cpu_test::row_product(layer.down(e), c, [&](int64_t k) { return h[static_cast<size_t>(k)]; });
      double more = 0;
      for (int i = 0; i < width; ++i) more += std::abs(layer.down(e).at(c, i)) * jump[static_cast<size_t>(i)];
      sum[static_cast<size_t>(c)] += weight * y.value;
      bound[static_cast<size_t>(c)] += weight * (y.bound + more) + 3e-6 * std::abs(weight * y.value);
    }
  }

  static void check(const Layer& layer, const TensorView& x, int rows, const Result& r, bool given = false) {
    const MoeProblem& p = layer.p;
    for (int row = 0; row < rows; ++row) {
      const int32_t* ids = r.ids.data() + row * p.top_k;
      std::vector<double> score, slack;
      const auto in = [&](int64_t k) { return cpu_test::value(x, int64_t{row} * p.hidden + k); };
      for (int e = 0; e < p.experts; ++e) {
        const cpu_test::Sum s = cpu_test::row_product(layer.raw[0].raw, e, in);
        score.push_back(s.value);
        slack.push_back(s.bound);
      }
      double total = 0;
      for (int e = 0; e < p.experts; ++e)
        if (!p.renormalise || std::count(ids, ids + p.top_k, e) > 0) total += std::exp(score[static_cast<size_t>(e)]);
      std::vector<double> sum(static_cast<size_t>(p.hidden)), bound(sum.size(), 1e-30);
      for (int j = 0; j < p.top_k; ++j) {
        ASSERT_GE(ids[j], 0);
        ASSERT_LT(ids[j], p.experts);
        const auto id = static_cast<size_t>(ids[j]);
        if (!given) {
          ASSERT_EQ(std::count(ids, ids + p.top_k, ids[j]), 1) << "an expert twice";
          for (size_t e = 0; e < score.size(); ++e)
            if (std::count(ids, ids + j + 1, static_cast<int32_t>(e)) == 0) {
              ASSERT_GE(score[id] + slack[id] + slack[e], score[e]) << "row " << row << " left out expert " << e;
              ASSERT_TRUE(score[id] != score[e] || id < e) << "row " << row << ": tie of " << id << " and " << e;
            }
          ASSERT_NEAR(r.weights[static_cast<size_t>(row * p.top_k + j)], std::exp(score[id]) / total, 1e-4)
              << "row " << row;
        }
        add_expert(layer, ids[j], r.weights[static_cast<size_t>(row * p.top_k + j)], x, row, sum, bound);
      }
      if (p.shared_width > 0) {
        double a = 1;
        if (p.shared_gate) a = 1 / (1 + std::exp(-cpu_test::row_product(layer.raw.back().raw, 0, in).value));
        add_expert(layer, p.experts, a, x, row, sum, bound);
        for (double& b : bound) b *= 2;
      }
      for (int c = 0; c < p.hidden; ++c)
        ASSERT_NEAR(cpu_test::value(r.partial.view(), int64_t{row} * p.hidden + c), sum[static_cast<size_t>(c)],
                    bound[static_cast<size_t>(c)])
            << "row " << row << " column " << c << " of " << p.text();
    }
  }
};

MoeProblem small(WeightFormat format, Activation activation) {
  return {.hidden = 48,
          .experts = 6,
          .top_k = 2,
          .width = 32,
          .format = format,
          .shared_format = format,
          .router_format = format == WeightFormat::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16,
          .activation = activation};
}

TEST_P(MoeCpu, EveryFormatAgainstDouble) {
  for (const WeightFormat format : cpu_test::kFormats)
    for (const Activation activation : {Activation::kBf16, Activation::kF32}) {
      MoeProblem p = small(format, activation);
      p.shared_width = 16;
      p.shared_gate = activation == Activation::kBf16;
      p.renormalise = format != WeightFormat::kBf16;
      const Layer layer(p);
      for (const int rows : {1, 3, 33}) {
        Guarded x(dtype_of(activation), {rows, p.hidden});
        cpu_test::fill(x.view());
        check(layer, x.view(), rows, run(layer, x.view(), rows, 2));
      }
    }
}

TEST_P(MoeCpu, EveryRowCount) {
  const Layer layer(small(WeightFormat::kNvfp4, Activation::kBf16));
  for (const int rows : {1, 2, 3, 7, 8, 15, 16, 17, 33, 65}) {
    Guarded x(DType::kBF16, {rows, layer.p.hidden});
    cpu_test::fill(x.view());
    check(layer, x.view(), rows, run(layer, x.view(), rows, 2));
  }
}

TEST_P(MoeCpu, MixedFormatsAndAnOddHiddenSize) {
  MoeProblem p = small(WeightFormat::kBf16, Activation::kBf16);
  p.hidden = 37;
  p.shared_width = 48;
  p.shared_gate = true;
  p.shared_format = WeightFormat::kFp8;
  p.router_format = WeightFormat::kF32;
  const Layer layer(p);
  Guarded x(DType::kBF16, {9, p.hidden});
  cpu_test::fill(x.view());
  check(layer, x.view(), 9, run(layer, x.view(), 9, 2));
}

TEST_P(MoeCpu, OneExpertTakesAllRowsAndOthersAreEmpty) {
  const Layer layer(small(WeightFormat::kNvfp4, Activation::kBf16));
  const int rows = 16;
  Guarded x(DType::kBF16, {rows, layer.p.hidden});
  cpu_test::fill(x.view());
  std::vector<int32_t> ids;
  for (int r = 0; r < rows; ++r) {
    ids.push_back(5);
    ids.push_back(2 * (r % 2));
  }
  check(layer, x.view(), rows, run(layer, x.view(), rows, 2, &ids), true);
}

TEST_P(MoeCpu, EqualRowsGiveEqualResults) {
  const Layer layer(small(WeightFormat::kNvfp4, Activation::kBf16));
  const int rows = 19, hidden = layer.p.hidden;
  Guarded x(DType::kBF16, {rows, hidden});
  cpu_test::fill(x.view());
  for (int r = 1; r < rows; ++r)
    std::memcpy(x.view().as<uint16_t>() + r * hidden, x.view().data, static_cast<size_t>(hidden) * 2);
  const Result all = run(layer, x.view(), rows, 2);
  for (int r = 1; r < rows; ++r)
    EXPECT_EQ(std::memcmp(all.partial.view().as<float>() + r * hidden, all.partial.view().data,
                          static_cast<size_t>(hidden) * 4),
              0);
}

TEST_P(MoeCpu, ARowDoesNotDependOnItsNeighboursNorOnThreads) {
  for (const Activation activation : {Activation::kBf16, Activation::kF32}) {
    MoeProblem p = small(WeightFormat::kNvfp4, activation);
    p.shared_width = 16;
    p.shared_gate = true;
    const Layer layer(p);
    const int rows = 21;
    Guarded x(dtype_of(activation), {rows, p.hidden});
    cpu_test::fill(x.view());
    const Result all = run(layer, x.view(), rows, 1);
    for (const int members : {1, 2, 5})
      EXPECT_EQ(all.partial.bytes(), run(layer, x.view(), rows, members).partial.bytes());
    for (int n = 1; n < 9; ++n) {
      const std::vector<uint8_t> few = run(layer, x.view(), n, 2).partial.bytes(), most = all.partial.bytes();
      EXPECT_TRUE(std::equal(few.begin(), few.end(), most.begin())) << n << " rows";
    }
    for (int r = 1; r < rows; r += 2)
      for (int k = 0; k < p.hidden; ++k) cpu_test::set(x.view(), r * p.hidden + k, NAN);
    const Result poisoned = run(layer, x.view(), rows, 2);
    for (int r = 0; r < rows; r += 2)
      EXPECT_EQ(std::memcmp(poisoned.partial.view().as<float>() + r * p.hidden,
                            all.partial.view().as<float>() + r * p.hidden, static_cast<size_t>(p.hidden) * 4),
                0)
          << "row " << r << " beside NaN";
  }
}

TEST_P(MoeCpu, TiesTakeTheLowestId) {
  Layer layer(small(WeightFormat::kBf16, Activation::kBf16));
  Guarded x(DType::kBF16, {1, layer.p.hidden});
  for (int k = 0; k < layer.p.hidden; ++k) cpu_test::set(x.view(), k, 0);
  const Result r = run(layer, x.view(), 1, 2);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(r.weights, (std::vector<float>{.5f, .5f}));
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const Backend<MoeOp>* b : {&moe_cpu_gemv, &moe_cpu_gemm})
    for (const Tactic& t : b->tactics({}, this_cpu())) all.push_back({b, t});
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, MoeCpu, testing::ValuesIn(settings()), [](const testing::TestParamInfo<Setting>& info) {
  return fmt::format("{}_{}", info.param.backend->name, info.param.tactic.name);
});

TEST(MoeCpuSupports, RefusesWithValues) {
  MoeProblem p = small(WeightFormat::kNvfp4, Activation::kBf16);
  EXPECT_TRUE(moe_cpu_gemv.supports(p, this_cpu()).ok());
  EXPECT_EQ(moe_cpu_gemv.supports(p, Device{.name = "sm90"}).code, VerdictCode::kIsaMissing);
  p.width = 24;
  const Verdict width = moe_cpu_gemm.supports(p, this_cpu());
  EXPECT_EQ(width.code, VerdictCode::kShapeUnsupported);
  EXPECT_EQ(width.have, "expert width 24");
  p.width = 32;
  p.top_k = 7;
  EXPECT_EQ(moe_cpu_gemv.supports(p, this_cpu()).have, "top-7 of 6 experts");
}

}  // namespace
}  // namespace mettle
