// Figures of runs, and arrivals as figures tell them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "load/arrivals.h"
#include "load/load.h"

namespace mettle {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Arrivals, MeanAndVariationOfTheGaps) {
  const auto gaps_of = [](Arrival arrival, double burstiness) {
    const std::vector<double> times = arrival_times(20001, arrival, 50, burstiness, 7);
    EXPECT_EQ(times.front(), 0);
    std::vector<double> gaps;
    for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
    return quantiles_of(std::move(gaps));
  };
  // Exact for this seed; the expectation beside it: mean 0.02, variation 1/sqrt(burstiness).
  const Quantiles poisson = gaps_of(Arrival::kPoisson, 1);
  EXPECT_NEAR(poisson.mean, 0.02, 0.0004);
  EXPECT_NEAR(poisson.std / poisson.mean, 1, 0.02);
  EXPECT_NEAR(poisson.median, 0.02 * std::log(2.0), 0.0005);
  const Quantiles bursts = gaps_of(Arrival::kGamma, 0.25);
  EXPECT_NEAR(bursts.mean, 0.02, 0.001);
  EXPECT_NEAR(bursts.std / bursts.mean, 2, 0.05);
  const Quantiles even = gaps_of(Arrival::kGamma, 16);
  EXPECT_NEAR(even.mean, 0.02, 0.0002);
  EXPECT_NEAR(even.std / even.mean, 0.25, 0.005);
}

TEST(Arrivals, TheSeedDecides) {
  const auto times = arrival_times(100, Arrival::kGamma, 3, 0.5, 11);
  EXPECT_EQ(times, arrival_times(100, Arrival::kGamma, 3, 0.5, 11));
  EXPECT_NE(times, arrival_times(100, Arrival::kGamma, 3, 0.5, 12));
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_TRUE(arrival_times(0, Arrival::kPoisson, 1, 1, 0).empty());
  EXPECT_THAT(arrival_times(3, Arrival::kClosed, 1, 1, 0), ElementsAre(0, 0, 0));
}

LoadRequest went_well(double start, double ttft, double e2e, std::vector<double> itl, int in, int out) {
  LoadRequest r;
  r.start_s = start;
  r.ttft_ms = ttft;
  r.e2e_ms = e2e;
  r.itl_ms = std::move(itl);
  r.input_tokens = in;
  r.output_tokens = out;
  r.text = "x";
  return r;
}

LoadRun three_requests() {
  LoadRun run;
  run.seconds = 2;
  run.requests = {went_well(0.0, 100, 500, {200, 200}, 10, 3), went_well(0.25, 300, 700, {100, 300}, 20, 5),
                  went_well(1.0, 200, 200, {}, 30, 1), LoadRequest{}};
  run.requests[3].error = "HTTP 500";
  run.requests[3].input_tokens = 1000;
  return run;
}

TEST(Figures, AgreeWithNumbersWorkedOutByHand) {
  const LoadFigures f = figures_of(three_requests());
  EXPECT_EQ(f.completed, 3);
  EXPECT_EQ(f.failed, 1);
  EXPECT_EQ(f.total_input, 60);
  EXPECT_EQ(f.total_output, 9);
  EXPECT_DOUBLE_EQ(f.request_throughput, 1.5);
  EXPECT_DOUBLE_EQ(f.input_throughput, 30);
  EXPECT_DOUBLE_EQ(f.output_throughput, 4.5);
  EXPECT_DOUBLE_EQ(f.total_throughput, 34.5);
  EXPECT_DOUBLE_EQ(f.mean_concurrency, 0.7);  // (0.5 + 0.7 + 0.2) s of requests in 2 s
  EXPECT_DOUBLE_EQ(f.ttft_ms.mean, 200);
  EXPECT_DOUBLE_EQ(f.ttft_ms.median, 200);
  EXPECT_DOUBLE_EQ(f.ttft_ms.p90, 280);
  EXPECT_DOUBLE_EQ(f.ttft_ms.p99, 298);
  EXPECT_DOUBLE_EQ(f.ttft_ms.std, std::sqrt(20000.0 / 3));
  EXPECT_DOUBLE_EQ(f.tpot_ms.mean, 150);  // 400/2 and 400/4; one token has none
  EXPECT_DOUBLE_EQ(f.itl_ms.mean, 200);
  EXPECT_DOUBLE_EQ(f.itl_ms.max, 300);
  EXPECT_DOUBLE_EQ(f.e2e_ms.median, 500);
  EXPECT_EQ(f.peak_concurrency, 2);
  EXPECT_DOUBLE_EQ(f.peak_output_throughput, 6);  // from 0.1 to before 1.1 s: all but the last piece
  EXPECT_EQ(f.without_usage, 0);
}

TEST(Figures, NothingAndNothingThatWentWell) {
  EXPECT_EQ(figures_of(LoadRun{}).completed, 0);
  LoadRun run = three_requests();
  for (LoadRequest& r : run.requests) r.error = "x";
  const LoadFigures f = figures_of(run);
  EXPECT_EQ(f.failed, 4);
  EXPECT_EQ(f.output_throughput, 0);
  EXPECT_EQ(f.ttft_ms.p99, 0);
  EXPECT_EQ(f.peak_concurrency, 0);
}

TEST(Figures, WithoutUsagePiecesAreCounted) {
  LoadRun run = three_requests();
  run.requests[0].output_tokens = 0;
  const LoadFigures f = figures_of(run);
  EXPECT_EQ(f.without_usage, 1);
  EXPECT_EQ(f.total_output, 9);
}

TEST(Figures, GoodputCountsRequestsThatKeepEveryGoal) {
  const LoadRun run = three_requests();
  EXPECT_DOUBLE_EQ(goodput_of(run, {}), 1.5);
  EXPECT_DOUBLE_EQ(goodput_of(run, {.ttft_ms = 200}), 1);
  EXPECT_DOUBLE_EQ(goodput_of(run, {.ttft_ms = 200, .tpot_ms = 150}), 0.5);  // the one token keeps any pace
  EXPECT_DOUBLE_EQ(goodput_of(run, {.e2e_ms = 199}), 0);
  EXPECT_FALSE(Goals{}.any());
}

TEST(Figures, ConfidenceOfAMean) {
  EXPECT_EQ(confidence95({}), 0);
  EXPECT_EQ(confidence95({5}), 0);
  EXPECT_NEAR(confidence95({1, 3}), 12.706, 1e-9);                       // std 1.414, over sqrt(2), times t(1)
  EXPECT_NEAR(confidence95({1, 2, 3, 4, 5}), 2.776 * 0.70710678, 1e-6);  // std 1.5811 over sqrt(5)
  EXPECT_EQ(confidence95({2, 2, 2}), 0);
  EXPECT_NEAR(confidence95(std::vector<double>(1000, 1.0)), 0, 1e-12);
}

TEST(Figures, AClientAtItsLimitIsNamed) {
  LoadRun run;
  run.client_cores = 2;
  EXPECT_EQ(client_limit(run), "");
  run.client_cpu = 1.7;
  EXPECT_THAT(client_limit(run), HasSubstr("1.70 of its 2 cores"));
  run.client_cpu = 0;
  run.client_lag_ms = 21;
  EXPECT_THAT(client_limit(run), HasSubstr("21.0 ms late"));
  EXPECT_EQ(client_limit(run, {.lag_ms = 21}), "");
  run.client_lag_ms = 0;
  run.late_ms = 50;
  EXPECT_THAT(client_limit(run), HasSubstr("50.0 ms after it was due"));
}

}  // namespace
}  // namespace mettle
