// What this machine can do at most, probed in a second, and what a problem costs: together they tell how far a launch
// is from its roof. A kernel that keeps every core busy and stays far below both lines wastes them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_team.h"
#include "ops/problem.h"
#include "tensor/device.h"

namespace mettle {

// Bytes that a launch moves at least once and multiply-adds (counted twice) that its formula asks for, at `rows` rows
// as they are timed: attention and gdn with min(rows, 16) sequences, attention with kTimedContext tokens behind them.
struct OpCost {
  double bytes = 0, flops = 0;
  double footprint = 0;  // distinct bytes over many launches: what has to fit into a cache to be read from there
};
inline constexpr int kTimedContext = 256, kTimedSequences = 16;
OpCost cost_of(const AnyProblem& problem, int rows, DeviceKind kind);
// Of `experts` experts, those that `rows` tokens with `top_k` each meet when every one is as likely:
// E (1 - (1 - K/E)^n).
double experts_met(int experts, int top_k, int rows);

struct ReadRate {
  int64_t bytes = 0;  // read again and again
  double gbs = 0;
};
struct MathRate {
  std::string_view name;  // fma_f32, dot_bf16
  double gflops = 0;
};
struct Ceiling {
  std::vector<ReadRate> reads;  // rising bytes; the last from memory
  std::vector<MathRate> math;   // empty: not probed
  double fork_us = 0;           // of a CPU's team with nothing to do; 0: not probed
  // Threads that wait for a core take hundreds of microseconds to meet: what is timed then is the waiting.
  bool crowded() const { return fork_us > 100; }
  // Of data of that size: the rate of the next larger probe.
  double read_gbs(double footprint) const;
  double gflops(Activation activation) const;  // 0: not probed
};
// Takes about a second. On a CPU with that many threads; on a GPU the memory alone, by copying.
Ceiling probe_ceiling(const Device& device, int threads);

// How a time compares.
struct Roof {
  double gbs = 0, gflops = 0;  // achieved
  double part = 0;             // of the roof: least time by both ceilings / time
  bool by_memory = true;       // which ceiling is the roof here
};
Roof roof_of(const AnyProblem& problem, int rows, double us, const Ceiling& ceiling, const Device& device);

// Reads all of it, a multiple of 512 bytes, with the widest loads that the CPU has. The result, an exclusive or, keeps
// the compiler from leaving it out.
uint64_t read_memory(const uint8_t* data, int64_t bytes, const Device& cpu);

// Clock and power while something runs, where they can be read.
class Sensors {
 public:
  explicit Sensors(const Device& device);
  ~Sensors();
  void sample();                   // cheap when called often
  std::string clock_text() const;  // "2.6 GHz (2.4..3.1)" or "not readable"
  std::string power_text() const;  // "85 W of 700 W" or "not readable"

 private:
  struct Source;
  std::unique_ptr<Source> source_;
};

}  // namespace mettle
