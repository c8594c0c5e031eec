#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "load/load.h"

namespace mettle {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

int pieces(const LoadRequest& r) { return r.text.empty() ? 0 : static_cast<int>(r.itl_ms.size()) + 1; }
int output_tokens(const LoadRequest& r) { return r.output_tokens > 0 ? r.output_tokens : pieces(r); }

// Negative: it has no such time.
double tpot_ms(const LoadRequest& r) {
  const int tokens = output_tokens(r);
  return tokens > 1 ? (r.e2e_ms - r.ttft_ms) / (tokens - 1) : -1;
}

double best_second(const LoadRun& run) {
  std::vector<double> times;
  for (const LoadRequest& r : run.requests) {
    if (!r.error.empty() || r.text.empty()) continue;
    double at = r.start_s + r.ttft_ms / 1e3;
    times.push_back(at);
    for (const double itl : r.itl_ms) times.push_back(at += itl / 1e3);
  }
  std::sort(times.begin(), times.end());
  size_t best = 0;
  for (size_t begin = 0, end = 0; end < times.size(); ++end) {
    while (times[end] - times[begin] >= 1) ++begin;
    best = std::max(best, end - begin + 1);
  }
  return static_cast<double>(best);
}

int most_at_once(const LoadRun& run) {
  std::vector<std::pair<double, int>> changes;  // at one time ends come before beginnings
  for (const LoadRequest& r : run.requests) {
    if (!r.error.empty()) continue;
    changes.emplace_back(r.start_s, 1);
    changes.emplace_back(r.start_s + r.e2e_ms / 1e3, -1);
  }
  std::sort(changes.begin(), changes.end());
  int now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

}  // namespace

Quantiles quantiles_of(std::vector<double> values) {
  Quantiles q;
  if (values.empty()) return q;
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  q.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double v : values) squares += (v - q.mean) * (v - q.mean);
  q.std = std::sqrt(squares / n);
  q.median = quantile(values, 0.5);
  q.p90 = quantile(values, 0.9);
  q.p95 = quantile(values, 0.95);
  q.p99 = quantile(values, 0.99);
  q.max = values.back();
  return q;
}

LoadFigures figures_of(const LoadRun& run) {
  LoadFigures f;
  std::vector<double> ttft, tpot, itl, e2e;
  for (const LoadRequest& r : run.requests) {
    if (!r.error.empty()) {
      ++f.failed;
      continue;
    }
    ++f.completed;
    if (r.output_tokens == 0) ++f.without_usage;
    f.total_input += r.input_tokens;
    f.total_output += output_tokens(r);
    ttft.push_back(r.ttft_ms);
    e2e.push_back(r.e2e_ms);
    if (const double t = tpot_ms(r); t >= 0) tpot.push_back(t);
    itl.insert(itl.end(), r.itl_ms.begin(), r.itl_ms.end());
  }
  f.duration_s = run.seconds;
  if (run.seconds > 0) {
    f.request_throughput = f.completed / run.seconds;
    f.input_throughput = static_cast<double>(f.total_input) / run.seconds;
    f.output_throughput = static_cast<double>(f.total_output) / run.seconds;
    f.total_throughput = f.input_throughput + f.output_throughput;
    f.mean_concurrency = std::accumulate(e2e.begin(), e2e.end(), 0.0) / 1e3 / run.seconds;
  }
  f.ttft_ms = quantiles_of(std::move(ttft));
  f.tpot_ms = quantiles_of(std::move(tpot));
  f.itl_ms = quantiles_of(std::move(itl));
  f.e2e_ms = quantiles_of(std::move(e2e));
  f.peak_output_throughput = best_second(run);
  f.peak_concurrency = most_at_once(run);
  return f;
}

double goodput_of(const LoadRun& run, const Goals& goals) {
  if (run.seconds <= 0) return 0;
  const auto keeps = [](double value, double goal) { return goal < 0 || value <= goal; };
  const auto good = std::count_if(run.requests.begin(), run.requests.end(), [&](const LoadRequest& r) {
    return r.error.empty() && keeps(r.ttft_ms, goals.ttft_ms) && keeps(tpot_ms(r), goals.tpot_ms) &&
           keeps(r.e2e_ms, goals.e2e_ms);
  });
  return static_cast<double>(good) / run.seconds;
}

double confidence95(const std::vector<double>& values) {
  // Student's t for 95 % in the middle, by degrees of freedom.
  constexpr std::array kT = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                             2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                             2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  if (values.size() < 2) return 0;
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  const size_t freedom = values.size() - 1;
  const double t = freedom <= kT.size() ? kT[freedom - 1] : 1.96 + 2.4 / static_cast<double>(freedom);
  return t * std::sqrt(squares / (n - 1) / n);
}

}  // namespace mettle
