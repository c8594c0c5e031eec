// sample: the reference backend against rules told by hand, and against the oracle on random rows.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>

#include "ops/oracle.h"
#include "ops/oracle_test_support.h"

namespace mettle {
namespace {

using oracle_test::normal;
using oracle_test::Random;
using oracle_test::run_reference;

constexpr float kInf = std::numeric_limits<float>::infinity();

SampleResult sample_one(std::vector<float> logits, const SampleRow& row, int usable = 0) {
  const int vocab = static_cast<int>(logits.size());
  SampleResult result;
  run_reference<SampleOp>({.problem = {vocab, usable > 0 ? usable : vocab},
                           .rows = 1,
                           .logits = {logits.data(), DType::kF32, {1, vocab}},
                           .params = {&row, 1},
                           .results = {&result, 1},
                           .ws = {}},
                          1);
  return result;
}

TEST(Sample, GreedyTakesTheLowestIdOfTheBest) {
  EXPECT_EQ(sample_one({1, 3, 2, 3}, {}).token, 1);
  EXPECT_EQ(sample_one({-5, -7, -5}, {}).token, 0);
  EXPECT_EQ(sample_one({0}, {}).token, 0);
  EXPECT_EQ(sample_one({1, 2, 9, 9}, {}, 2).token, 1) << "padding is not a token";
}

TEST(Sample, NonFiniteLogitsGiveNoToken) {
  for (const float bad : {kInf, -kInf, std::nanf("")})
    for (const float temperature : {0.f, 1.f}) {
      SampleRow row{.temperature = temperature, .random = 0.3};
      EXPECT_EQ(sample_one({1, bad, 2}, row).token, -1);
      EXPECT_EQ(sample_one({1, 2, bad}, row, 2).token, temperature == 0 ? 1 : sample_one({1, 2}, row).token)
          << "in the padding it does not matter";
    }
}

TEST(Sample, BiasAndMask) {
  const TokenBias bias[] = {{0, 5.f}, {1, -kInf}};
  SampleRow row{.biases = bias};
  EXPECT_EQ(sample_one({0, 9, 4}, row).token, 0);
  EXPECT_NEAR(sample_one({0, 9, 4}, row).logprob, -9 - std::log1p(std::exp(-5.) + std::exp(-9.)), 1e-6)
      << "of the raw logits";
  const TokenBias all[] = {{0, -kInf}, {1, -kInf}, {2, -kInf}};
  row.biases = all;
  EXPECT_EQ(sample_one({0, 9, 4}, row).token, -1) << "every token is forbidden";
  row.temperature = 1;
  EXPECT_EQ(sample_one({0, 9, 4}, row).token, -1);
  row.biases = bias;
  for (const double u : {0., 0.5, 0.999999}) {
    row.random = u;
    EXPECT_NE(sample_one({0, 9, 4}, row).token, 1);
  }
}

TEST(Sample, Penalties) {
  const TokenCount counts[] = {{0, 2, false}, {1, 0, true}};
  SampleRow row{.repetition = 2, .counts = counts};
  EXPECT_EQ(sample_one({4, 1, 2.5f}, row).token, 2) << "a positive logit is divided";
  EXPECT_EQ(sample_one({-1, -1.5f, -1.9f}, row).token, 2) << "a negative one is multiplied";
  EXPECT_EQ(sample_one({-9, 4, 2.5f}, row).token, 2) << "repetition counts the prompt";
  row = {.presence = 1, .counts = counts};
  EXPECT_EQ(sample_one({4, 3.5f, 0}, row).token, 1) << "presence counts the output";
  EXPECT_EQ(sample_one({0, 3.5f, 3}, row).token, 1) << "and not the prompt";
  row = {.frequency = 1, .counts = counts};
  EXPECT_EQ(sample_one({4, 2.5f, 0}, row).token, 1) << "frequency counts every time";
  EXPECT_EQ(sample_one({4, 1.5f, 0}, row).token, 0);
}

// How often each token comes when the random number sweeps the unit interval.
std::vector<double> distribution(const std::vector<float>& logits, SampleRow row) {
  std::vector<double> share(logits.size());
  constexpr int kSteps = 4000;
  for (int i = 0; i < kSteps; ++i) {
    row.random = (i + 0.5) / kSteps;
    share[static_cast<size_t>(sample_one(logits, row).token)] += 1.0 / kSteps;
  }
  return share;
}
void expect_shares(const std::vector<double>& got, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 0.001) << i;
}

TEST(Sample, TheDistributionIsWhatTheLimitsLeave) {
  const float l1 = std::log(1.f), l2 = std::log(2.f), l3 = std::log(3.f), l4 = std::log(4.f);
  const std::vector<float> logits = {l2, l4, l1, l3};  // weights 2 4 1 3
  expect_shares(distribution(logits, {.temperature = 1}), {.2, .4, .1, .3});
  expect_shares(distribution(logits, {.temperature = 0.5f}), {4 / 30., 16 / 30., 1 / 30., 9 / 30.});
  expect_shares(distribution(logits, {.temperature = 1, .top_k = 2}), {0, 4 / 7., 0, 3 / 7.});
  expect_shares(distribution(logits, {.temperature = 1, .top_p = 0.5f}), {0, 4 / 7., 0, 3 / 7.});  // 3 crosses
  expect_shares(distribution(logits, {.temperature = 1, .top_p = 0.39f}), {0, 1, 0, 0});
  expect_shares(distribution(logits, {.temperature = 1, .top_p = 0}), {0, 1, 0, 0});
  expect_shares(distribution(logits, {.temperature = 1, .min_p = 0.4f}), {2 / 9., 4 / 9., 0, 3 / 9.});
  expect_shares(distribution(logits, {.temperature = 1, .top_k = 3, .top_p = 0.7f}),
                {0, 4 / 7., 0, 3 / 7.});                                                          // of 9: 4, 7 >= 6.3
  expect_shares(distribution({l2, l2, l2, l2}, {.temperature = 1, .top_k = 2}), {.5, .5, 0, 0});  // ties: lowest ids
  expect_shares(distribution(logits, {.temperature = 1e-4f}), {0, 1, 0, 0});
}

TEST(Sample, LogprobsAreOfTheRawLogits) {
  const TokenBias bias[] = {{2, 100.f}};
  const SampleRow row{.temperature = 0.3f, .random = 0.5, .top_logprobs = 3, .biases = bias};
  const std::vector<float> logits = {1, 3, 0, 3, 1000};  // the last is padding
  const SampleResult r = sample_one(logits, row, 4);
  const double sum = std::exp(1.) + 2 * std::exp(3.) + 1;
  EXPECT_EQ(r.token, 2);
  EXPECT_NEAR(r.logprob, 0 - std::log(sum), 1e-6);
  EXPECT_EQ(r.top_ids[0], 1);
  EXPECT_EQ(r.top_ids[1], 3);
  EXPECT_EQ(r.top_ids[2], 0);
  EXPECT_NEAR(r.top_logprobs[0], 3 - std::log(sum), 1e-6);
  EXPECT_NEAR(r.top_logprobs[2], 1 - std::log(sum), 1e-6);
}

struct Drawn {
  SampleProblem p;
  std::vector<float> logits;
  std::vector<TokenCount> counts;
  std::vector<TokenBias> biases;
  SampleRow row;
};
Drawn random_row(uint32_t seed) {
  Random random(seed);
  Drawn d;
  d.p.vocab = 300 + static_cast<int>(random() % 6000);
  d.p.usable = d.p.vocab - static_cast<int>(random() % 200);
  const float scale = std::array{0.5f, 3.f, 8.f}[random() % 3];
  for (int i = 0; i < d.p.vocab; ++i) d.logits.push_back(i < d.p.usable ? normal(random) * scale : 60.f);
  if (seed % 4 == 0)
    for (float& l : d.logits) l = std::round(l);  // many ties
  for (int i = 0; i < 40; ++i)
    d.counts.push_back({static_cast<int32_t>(i * 7), static_cast<int32_t>(random() % 4), random() % 2 == 0});
  for (int i = 0; i < 20; ++i) d.biases.push_back({static_cast<int32_t>(i * 11), i % 3 == 0 ? -kInf : normal(random)});
  d.row = {.temperature = seed % 5 == 0 ? 0.f : 0.3f + static_cast<float>(random() % 100) / 60.f,
           .top_k = std::array{0, 1, 20, 500}[random() % 4],
           .top_p = std::array{1.f, 0.95f, 0.5f}[random() % 3],
           .min_p = std::array{0.f, 0.05f}[random() % 2],
           .repetition = std::array{1.f, 1.3f}[random() % 2],
           .presence = std::array{0.f, 1.5f}[random() % 2],
           .frequency = std::array{0.f, 0.2f}[random() % 2],
           .random = static_cast<double>(random()) * 0x1p-32,
           .top_logprobs = 20};
  return d;
}

TEST(Sample, AgreesWithTheOracle) {
  double worst = 0;
  size_t choices = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Drawn d = random_row(seed);
    d.row.counts = d.counts;
    d.row.biases = d.biases;
    const SampleResult r = sample_one(d.logits, d.row, d.p.usable);
    const oracle::SampleExpected e = oracle::sample(d.p, d.logits.data(), d.row);
    ASSERT_TRUE(e.finite);
    ASSERT_NE(std::find(e.right.begin(), e.right.end(), r.token), e.right.end())
        << "seed " << seed << " token " << r.token;
    choices += e.right.size();
    double sigma = 0;
    const double want = oracle::logprob(d.p, d.logits.data(), r.token, &sigma);
    worst = std::max(worst, std::fabs(static_cast<double>(r.logprob) - want) / sigma);
    for (size_t i = 0; i < 20; ++i)
      EXPECT_NEAR(r.top_logprobs[i], oracle::logprob(d.p, d.logits.data(), r.top_ids[i], nullptr), 1e-4);
  }
  EXPECT_LE(worst, 5);
  EXPECT_LT(choices, 200 * 4) << "the oracle may not accept just anything";
}

// Faults in the row's parameters are seen by some row.
TEST(Sample, TheOracleConvicts) {
  const std::vector<std::function<void(Drawn&)>> faults = {
      [](Drawn& d) { d.row.top_k = d.row.top_k == 0 ? 0 : d.row.top_k + 1; },
      [](Drawn& d) { d.row.temperature *= 1.02f; },
      [](Drawn& d) { d.row.top_p = d.row.top_p == 1 ? 1 : d.row.top_p * 0.93f; },
      [](Drawn& d) { d.row.min_p = 0; },
      [](Drawn& d) { d.row.presence = -d.row.presence; },
      [](Drawn& d) { d.row.repetition = 1; },
      [](Drawn& d) { d.row.frequency = 0; },
      [](Drawn& d) { d.biases.clear(); },
      [](Drawn& d) { d.p.usable = d.p.vocab; },
      [](Drawn& d) {
        for (float& l : d.logits) l = bf16_to_float(float_to_bf16(l));
      }};
  for (size_t f = 0; f < faults.size(); ++f) {
    int wrong = 0;
    for (uint32_t seed = 0; seed < 200; ++seed) {
      Drawn right = random_row(seed), faulty = right;
      faults[f](faulty);
      for (Drawn* d : {&right, &faulty}) {
        d->row.counts = d->counts;
        d->row.biases = d->biases;
      }
      const SampleResult r = sample_one(faulty.logits, faulty.row, faulty.p.usable);
      const std::vector<int32_t> accepted = oracle::sample(right.p, right.logits.data(), right.row).right;
      wrong += std::find(accepted.begin(), accepted.end(), r.token) == accepted.end() ? 1 : 0;
    }
    EXPECT_GT(wrong, 0) << "fault " << f;
  }
}

TEST(Sample, RowsAndThreadsDoNotMatter) {
  constexpr int kRows = 9, kVocab = 700;
  Random random(3);
  std::vector<float> logits(kRows * kVocab);
  for (float& l : logits) l = normal(random) * 3;
  logits[2 * kVocab + 5] = std::nanf("");
  std::vector<SampleRow> rows(kRows);
  for (size_t i = 0; i < kRows; ++i)
    rows[i] = {.temperature = i % 2 == 0 ? 0.8f : 0.f,
               .top_k = static_cast<int>(i) * 3,
               .random = 0.1 * static_cast<double>(i),
               .top_logprobs = 3};
  std::vector<SampleResult> results(kRows);
  for (const int members : {1, 2, 16}) {
    run_reference<SampleOp>({.problem = {kVocab, kVocab},
                             .rows = kRows,
                             .logits = {logits.data(), DType::kF32, {kRows, kVocab}},
                             .params = rows,
                             .results = results,
                             .ws = {}},
                            kRows, members);
    for (size_t i = 0; i < kRows; ++i) {
      const SampleResult one = sample_one({logits.begin() + static_cast<std::ptrdiff_t>(i * kVocab),
                                           logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * kVocab)},
                                          rows[i]);
      EXPECT_EQ(results[i].token, one.token) << i;
      EXPECT_EQ(results[i].token == -1, i == 2) << i;
      EXPECT_EQ(results[i].logprob, one.logprob) << i;
      EXPECT_EQ(results[i].top_ids[2], one.top_ids[2]) << i;
    }
  }
}

}  // namespace
}  // namespace mettle
