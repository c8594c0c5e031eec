// join on the CPU against float64.
#include "ops/cpu/cpu_test_support.h"
#include "ops/join.h"

namespace mettle {

extern const Backend<JoinOp> join_cpu;

namespace {

using cpu_test::Guarded;

class JoinCpu : public testing::TestWithParam<Tactic> {
 protected:
  static void check(int rows, int hidden, int ranks, bool plus_one, Activation activation, float size) {
    const JoinProblem p{hidden, ranks, plus_one, 1e-6f, activation};
    Guarded residual(DType::kF32, {rows, hidden}), x(dtype_of(activation), {rows, hidden});
    std::vector<std::vector<float>> parts(static_cast<size_t>(ranks));
    std::vector<const float*> partials;
    std::vector<double> sums;
    for (auto& part : parts) {
      for (int i = 0; i < rows * hidden; ++i) part.push_back(size * cpu_test::normal());
      partials.push_back(part.data());
    }
    for (int i = 0; i < rows * hidden; ++i) {
      residual.view().as<float>()[i] = size * cpu_test::normal();
      sums.push_back(residual.view().as<float>()[i]);
      for (const auto& part : parts) sums.back() += part[static_cast<size_t>(i)];
    }
    std::vector<float> weight;
    for (int i = 0; i < hidden; ++i) weight.push_back(cpu_test::normal());
    ThreadTeam team(2);
    Stream stream{&team};
    const JoinArgs args{p, rows, residual.view(), partials, weight.data(), x.view()};
    check_args(args);
    join_cpu.run(GetParam(), args, stream);
    residual.expect_bands();
    x.expect_bands();
    for (int r = 0; r < rows; ++r) {
      double squares = 0;
      for (int i = 0; i < hidden; ++i) {
        const double got = residual.view().as<float>()[r * hidden + i], e = sums[static_cast<size_t>(r * hidden + i)];
        ASSERT_NEAR(got, e, 3e-7 * size * (ranks + 1) * 4) << "residual " << r << ", " << i;
        squares += got * got;
      }
      const double scale = 1 / std::sqrt(squares / hidden + 1e-6);
      for (int i = 0; i < hidden; ++i) {
        const double e = double{residual.view().as<float>()[r * hidden + i]} * scale *
                         (double{weight[static_cast<size_t>(i)]} + plus_one);
        const double step = activation == Activation::kBf16 ? 0.0040 : 3e-6;
        ASSERT_NEAR(cpu_test::value(x.view(), r * hidden + i), e, step * std::abs(e) + 1e-30) << "x " << r << ", " << i;
      }
    }
  }
};

TEST_P(JoinCpu, AgainstDouble) {
  for (const Activation activation : {Activation::kF32, Activation::kBf16})
    for (const int hidden : {1, 15, 16, 17, 1000, 2048})
      for (const int ranks : {0, 1, 3}) check(5, hidden, ranks, ranks == 1, activation, 1.f);
  check(1, 64, 1, false, Activation::kF32, 1e-5f);  // eps weighs
  check(1, 64, 1, false, Activation::kF32, 1e4f);
}

INSTANTIATE_TEST_SUITE_P(All, JoinCpu, testing::ValuesIn(isa_tactics(this_cpu())),
                         [](const testing::TestParamInfo<Tactic>& info) { return info.param.name; });

}  // namespace
}  // namespace mettle
