// Counters of the server and their text form for Prometheus.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace mettle {

// Lock-free; observe() may be called on the engine's thread.
class Histogram {
 public:
  static constexpr std::array<double, 18> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25,
                                                     0.5,   0.75,   1,     2.5,  5,     10,   30,    60,  300};
  void observe(double seconds);
  void print(std::string& out, std::string_view name, std::string_view help) const;

 private:
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<uint64_t> nanoseconds_{0};
};

class Metrics {
 public:
  Histogram time_to_first_token, inter_token_latency, request_duration;

  void count_answer(std::string_view route, int status);  // route: one of ours, never what a client wrote
  std::string text(const EngineInfo& info, const EngineStats& stats, const ServingPlan& serving,
                   int64_t connections) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> answers_;
};

}  // namespace mettle
