// linear on the CPU: every backend, instruction set, format and activation against sums in double.
#include <fmt/format.h>

#include "ops/cpu/cpu_test_support.h"
#include "ops/linear.h"

namespace mettle {

extern const Backend<LinearOp> linear_cpu_gemv, linear_cpu_gemm;

namespace {

using cpu_test::Guarded;

struct Setting {
  const Backend<LinearOp>* backend;
  Tactic tactic;
};

class LinearCpu : public testing::TestWithParam<Setting> {
 protected:
  // Computes y for the first `rows` rows of x on `members` threads.
  Guarded run(const LinearProblem& p, const PackedMatrix& w, const TensorView& x, int rows, int members) {
    Guarded y(DType::kF32, {rows, p.out});
    const Setting& s = GetParam();
    ThreadTeam team(members);
    Stream stream{&team};
    const size_t bytes = s.backend->workspace(s.tactic, p, rows, members);
    Guarded ws(DType::kU8, {static_cast<int64_t>(bytes)});
    LinearArgs args{p, rows, {x.data, x.dtype, {rows, p.in}}, &w, y.view(), {ws.view().as<uint8_t>(), bytes}};
    check_args(args);
    s.backend->run(s.tactic, args, stream);
    y.expect_bands();
    ws.expect_bands();
    return y;
  }
  void check(WeightFormat format, Activation activation, int rows, int in, int out) {
    SCOPED_TRACE(fmt::format("{} {} rows {} in {} out {}", name_of(format), name_of(activation), rows, in, out));
    const LinearProblem p{in, out, format, activation};
    ASSERT_TRUE(GetParam().backend->supports(p, this_cpu()).ok());
    const cpu_test::RandomMatrix w(format, out, in);
    const PackedMatrix packed = pack_tile16({w.raw});
    Guarded x(dtype_of(activation), {rows, in});
    cpu_test::fill(x.view());
    const Guarded y = run(p, packed, x.view(), rows, 2);
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < out; ++c) {
        const cpu_test::Sum e =
            cpu_test::row_product(w.raw, c, [&](int64_t k) { return cpu_test::value(x.view(), r * in + k); });
        ASSERT_NEAR(cpu_test::value(y.view(), r * out + c), e.value, e.bound) << "row " << r << " column " << c;
      }
  }
};

TEST_P(LinearCpu, EveryFormatAndRowCountAgainstDouble) {
  for (const WeightFormat format : cpu_test::kFormats)
    for (const Activation activation : {Activation::kBf16, Activation::kF32})
      for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 33, 65}) check(format, activation, rows, 48, 37);
}

TEST_P(LinearCpu, OddSizes) {
  for (const Activation activation : {Activation::kBf16, Activation::kF32})
    for (const WeightFormat format : cpu_test::kFormats) {
      for (const int out : {1, 15, 16, 17, 95}) check(format, activation, 3, 16, out);
      check(format, activation, 9, 2048, 19);
      if (format == WeightFormat::kNvfp4) continue;
      for (const int in : {1, 2, 15, 17, 127, 129, 257}) check(format, activation, 9, in, 18);
    }
}

TEST_P(LinearCpu, ARowDoesNotDependOnItsNeighboursNorOnThreads) {
  for (const WeightFormat format : cpu_test::kFormats)
    for (const Activation activation : {Activation::kBf16, Activation::kF32}) {
      const LinearProblem p{272, 70, format, activation};
      const cpu_test::RandomMatrix w(format, p.out, p.in);
      const PackedMatrix packed = pack_tile16({w.raw});
      Guarded x(dtype_of(activation), {33, p.in});
      cpu_test::fill(x.view());
      const Guarded all = run(p, packed, x.view(), 33, 1);
      EXPECT_EQ(all.bytes(), run(p, packed, x.view(), 33, 2).bytes()) << "two threads";
      EXPECT_EQ(all.bytes(), run(p, packed, x.view(), 33, 7).bytes()) << "more threads than tiles";
      for (int rows = 1; rows < 12; ++rows) {
        const std::vector<uint8_t> few = run(p, packed, x.view(), rows, 2).bytes(), most = all.bytes();
        EXPECT_TRUE(std::equal(few.begin(), few.end(), most.begin())) << rows << " rows, " << name_of(format);
      }
      for (int r = 1; r < 33; r += 2)
        for (int k = 0; k < p.in; ++k) cpu_test::set(x.view(), r * p.in + k, NAN);
      const Guarded poisoned = run(p, packed, x.view(), 33, 2);
      for (int r = 0; r < 33; r += 2)
        EXPECT_EQ(std::memcmp(poisoned.view().as<float>() + r * p.out, all.view().as<float>() + r * p.out,
                              sizeof(float) * 70),
                  0)
            << "row " << r << " beside NaN";
    }
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const Backend<LinearOp>* b : {&linear_cpu_gemv, &linear_cpu_gemm})
    for (const Tactic& t : b->tactics({}, this_cpu())) all.push_back({b, t});
  return all;
}
std::string name_of_setting(const testing::TestParamInfo<Setting>& info) {
  return fmt::format("{}_{}", info.param.backend->name, info.param.tactic.name);
}
INSTANTIATE_TEST_SUITE_P(All, LinearCpu, testing::ValuesIn(settings()), name_of_setting);

TEST(LinearCpuSupports, RefusesWithValues) {
  const LinearProblem odd{24, 16, WeightFormat::kNvfp4, Activation::kBf16};
  const Verdict shape = linear_cpu_gemv.supports(odd, this_cpu());
  EXPECT_EQ(shape.code, VerdictCode::kShapeUnsupported);
  EXPECT_EQ(shape.have, "24 input columns");
  const Verdict gpu =
      linear_cpu_gemm.supports({32, 16, WeightFormat::kNvfp4, Activation::kBf16}, Device{.name = "sm90"});
  EXPECT_EQ(gpu.code, VerdictCode::kIsaMissing);
  EXPECT_EQ(gpu.have, "sm90");
}

}  // namespace
}  // namespace mettle
