// sample on the CPU: the same token as the reference, which sorts the vocabulary in float64, and its log-probabilities;
// rows given to threads and a row shared by them give the same bits.
#include <algorithm>
#include <cstring>

#include "ops/cpu/cpu_test_support.h"
#include "ops/sample.h"

namespace mettle {

extern const Backend<SampleOp> sample_cpu, sample_cpu_shared, sample_reference;

namespace {

class SampleCpu : public testing::TestWithParam<Tactic> {
 protected:
  static std::vector<SampleResult> run(const Backend<SampleOp>& b, const Tactic& t, const SampleProblem& p,
                                       std::vector<float>& logits, const std::vector<SampleRow>& rows,
                                       int members = 2) {
    std::vector<SampleResult> results(rows.size());
    ThreadTeam team(members);
    Stream stream{&team};
    const int n = static_cast<int>(rows.size());
    Buffer ws(b.workspace(t, p, n, members));
    std::memset(ws.data(), 0x7F, ws.size());
    SampleArgs args{p, n, {logits.data(), DType::kF32, {n, p.vocab}}, rows, results, cpu_test::workspace_of(ws)};
    check_args(args);
    b.run(t, args, stream);
    return results;
  }
  // Compares every row; sums in float32 may move a border between two tokens by 1e-5 of the distribution, so a row is
  // asked again just beside where the tokens differ.
  void same(const SampleProblem& p, std::vector<float>& logits, const std::vector<SampleRow>& rows) {
    const std::vector<SampleResult> got = run(sample_cpu, GetParam(), p, logits, rows);
    const std::vector<SampleResult> want = run(sample_reference, {}, p, logits, rows);
    std::vector<SampleRow> low = rows, high = rows;
    for (SampleRow& r : low) r.random = std::max(0.0, r.random - 2e-5), r.top_p = r.top_p < 1 ? r.top_p - 2e-5f : 1;
    for (SampleRow& r : high)
      r.random = std::min(1 - 1e-9, r.random + 2e-5), r.top_p = r.top_p < 1 ? r.top_p + 2e-5f : 1;
    const std::vector<SampleResult> below = run(sample_reference, {}, p, logits, low),
                                    above = run(sample_reference, {}, p, logits, high);
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(got[i].token == want[i].token || got[i].token == below[i].token || got[i].token == above[i].token)
          << "row " << i << ": " << got[i].token << " instead of " << want[i].token << ", random " << rows[i].random;
      if (got[i].token == want[i].token) {
        ASSERT_NEAR(got[i].logprob, want[i].logprob, 1e-5 * (1 + std::abs(want[i].logprob)));
      }
      for (int j = 0; j < rows[i].top_logprobs; ++j) {
        ASSERT_EQ(got[i].top_ids[j], want[i].top_ids[j]);
        ASSERT_NEAR(got[i].top_logprobs[j], want[i].top_logprobs[j], 1e-5 * (1 + std::abs(want[i].top_logprobs[j])));
      }
    }
  }
  static std::vector<float> random_logits(size_t n, float spread) {
    std::vector<float> logits(n);
    for (float& l : logits) l = spread * cpu_test::normal();
    return logits;
  }
};

TEST_P(SampleCpu, EveryLimitAgainstTheReference) {
  const SampleProblem p{1003, 990};
  for (const float spread : {0.f, 0.1f, 3.f, 30.f}) {
    std::vector<SampleRow> rows;
    for (int i = 0; i < 60; ++i) {
      SampleRow r;
      r.temperature = std::array{0.f, .3f, 1.f, 5.f}[static_cast<size_t>(i % 4)];
      r.top_k = std::array{0, 1, 7, 500, 5000}[static_cast<size_t>(i % 5)];
      r.top_p = std::array{1.f, .9f, .1f}[static_cast<size_t>(i / 4 % 3)];
      r.min_p = std::array{0.f, .05f, .9f}[static_cast<size_t>(i / 7 % 3)];
      r.random = i / 60.0;
      r.top_logprobs = i % 21;
      rows.push_back(r);
    }
    std::vector<float> logits = random_logits(60 * 1003, spread);
    same(p, logits, rows);
  }
}

TEST_P(SampleCpu, WholeDistribution) {
  const SampleProblem p{64, 64};
  std::vector<SampleRow> rows;
  for (int i = 0; i < 400; ++i) rows.push_back({.temperature = 1, .random = i / 400.0});
  std::vector<float> one = random_logits(64, 2), logits;
  for (int i = 0; i < 400; ++i) logits.insert(logits.end(), one.begin(), one.end());
  same(p, logits, rows);
}

TEST_P(SampleCpu, PenaltiesAndBiases) {
  const SampleProblem p{300, 300};
  const std::vector<TokenCount> counts = {{3, 2, true}, {7, 0, true}, {9, 1, false}, {299, 5, false}, {900, 1, true}};
  const std::vector<TokenBias> biases = {{4, 5.f}, {5, -INFINITY}, {7, 1e-9f}};
  std::vector<SampleRow> rows;
  for (int i = 0; i < 40; ++i)
    rows.push_back({.temperature = i % 2 * .8f,
                    .top_p = i % 3 == 0 ? .8f : 1.f,
                    .repetition = 1.3f,
                    .presence = .2f,
                    .frequency = .1f,
                    .random = i / 40.0,
                    .counts = counts,
                    .biases = biases});
  std::vector<float> logits = random_logits(40 * 300, 2);
  same(p, logits, rows);
}

TEST_P(SampleCpu, TiesForbiddenAndNotFinite) {
  const SampleProblem p{40, 40};
  std::vector<float> logits(4 * 40, 1.f);
  logits[40 + 7] = NAN;
  logits[80 + 9] = INFINITY;
  std::vector<TokenBias> all;
  for (int i = 0; i < 40; ++i) all.push_back({i, -INFINITY});
  const std::vector<SampleRow> rows = {
      {.temperature = 0}, {.temperature = 1}, {.temperature = 1}, {.temperature = 1, .biases = all}};
  // A bias of infinity has no distribution: the token it is given to.
  const std::vector<TokenBias> forced = {{3, INFINITY}};
  std::vector<float> plain(40, 1.f);
  EXPECT_EQ(run(sample_cpu, GetParam(), p, plain, {{.temperature = 1, .random = .9, .biases = forced}})[0].token, 3);
  const std::vector<SampleResult> r = run(sample_cpu, GetParam(), p, logits, rows);
  EXPECT_EQ(r[0].token, 0);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(r[i].token, -1) << i;
  std::vector<float> equal(40 * 40, -2.f);
  std::vector<SampleRow> draws;
  for (int i = 0; i < 40; ++i) draws.push_back({.temperature = 1, .random = (i + .5) / 40});
  const std::vector<SampleResult> spread = run(sample_cpu, GetParam(), p, equal, draws);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(spread[static_cast<size_t>(i)].token, i);
  // A forbidden token is never drawn, whatever the number.
  const std::vector<TokenBias> but_one(all.begin() + 1, all.end());
  const std::vector<SampleRow> last = {{.temperature = 2, .random = 1 - 1e-16, .biases = but_one}};
  std::vector<float> row(40, 0.f);
  EXPECT_EQ(run(sample_cpu, GetParam(), p, row, last)[0].token, 0);
}

// Slices of one row begin and end at other ids with every number of threads; the last piece is short.
TEST_P(SampleCpu, TheSameBitsWhateverTheThreads) {
  const SampleProblem p{9000, 8999};
  const std::vector<TokenCount> counts = {
      {0, 2, true}, {1023, 1, false}, {1024, 3, true}, {4500, 1, true}, {8998, 2, true}};
  const std::vector<TokenBias> biases = {{1, -INFINITY}, {2047, 2.f}, {2048, 2.f}, {8997, -INFINITY}};
  std::vector<SampleRow> rows;
  for (int i = 0; i < 48; ++i) {
    SampleRow r;
    r.temperature = std::array{0.f, .7f, 1.f, 3.f}[static_cast<size_t>(i % 4)];
    r.top_k = std::array{0, 20, 3000}[static_cast<size_t>(i / 4 % 3)];
    r.top_p = i % 5 < 3 ? .95f : 1.f;
    r.min_p = i % 7 < 2 ? .02f : 0.f;
    r.random = (i + .5) / 48;
    r.top_logprobs = i % 21;
    if (i % 2 == 1) r.repetition = 1.2f, r.presence = .5f, r.frequency = .1f, r.counts = counts, r.biases = biases;
    rows.push_back(r);
  }
  std::vector<float> logits = random_logits(48 * 9000, 3);
  for (int i = 0; i < 48; i += 3)  // many ties, on both sides of every border
    for (int j = 0; j < 9000; ++j)
      logits[static_cast<size_t>(i * 9000 + j)] = std::round(logits[static_cast<size_t>(i * 9000 + j)]);
  same(p, logits, rows);
  const std::vector<SampleResult> want = run(sample_cpu, GetParam(), p, logits, rows);
  for (const int members : {1, 2, 3, 4, 7}) {
    const std::vector<SampleResult> got = run(sample_cpu_shared, GetParam(), p, logits, rows, members);
    for (size_t i = 0; i < rows.size(); ++i)
      ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(SampleResult)), 0)
          << members << " threads, row " << i << ": " << got[i].token << " instead of " << want[i].token;
  }
}

// In every piece of the vocabulary, the first and the last id: nobody's slice loses one.
TEST_P(SampleCpu, EverySliceIsLookedAt) {
  const SampleProblem p{6000, 5999};
  for (int id = 0; id < p.usable; id += id % 1024 == 0 && id + 1023 < p.usable ? 1023 : 1) {
    if (id % 1024 != 0 && id % 1024 != 1023 && id != p.usable - 1) continue;
    for (const int members : {1, 2, 3}) {
      std::vector<float> logits(6000, -1.f);
      logits[static_cast<size_t>(id)] = 30;
      logits[5999] = 90;  // padding
      const std::vector<SampleRow> rows = {{}, {.temperature = 1, .top_p = .5f, .random = .5}};
      std::vector<float> two = logits;
      two.insert(two.end(), logits.begin(), logits.end());
      for (const SampleResult& r : run(sample_cpu_shared, GetParam(), p, two, rows, members)) ASSERT_EQ(r.token, id);
      logits[static_cast<size_t>(id)] = NAN;
      ASSERT_EQ(run(sample_cpu_shared, GetParam(), p, logits, {rows[1]}, members)[0].token, -1) << id;
    }
  }
}

TEST(SampleCpuShared, IsOfferedWhereARowCanBeShared) {
  EXPECT_TRUE(sample_cpu_shared.supports({3073, 3073}, this_cpu()).ok());
  const Verdict v = sample_cpu_shared.supports({4000, 3072}, this_cpu());
  EXPECT_EQ(v.code, VerdictCode::kShapeUnsupported);
  EXPECT_EQ(v.have, "3072 ids");
  Device gpu;
  gpu.kind = DeviceKind::kCuda;
  EXPECT_EQ(sample_cpu_shared.supports({6144, 6144}, gpu).code, VerdictCode::kIsaMissing);
}

INSTANTIATE_TEST_SUITE_P(All, SampleCpu, testing::ValuesIn(isa_tactics(this_cpu())),
                         [](const testing::TestParamInfo<Tactic>& info) { return info.param.name; });

}  // namespace
}  // namespace mettle
