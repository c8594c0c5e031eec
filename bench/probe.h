// What the machine can do at this moment, measured beside every figure: other guests share memory and cores unseen.
#pragma once
#include <time.h>

#include <algorithm>
#include <vector>

#include "base/thread_team.h"
#include "tensor/buffer.h"

namespace mettle::bench {

// One thread is timed by its own CPU time, which leaves out what other processes take; several by the wall clock.
inline double seconds(int threads) {
  timespec t;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Other processes on the machine only ever add time: the best tenth of many short samples is what the code itself
// takes. Everything that is compared is sampled this way, interleaved.
inline double best_tenth(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto at = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 10);
  std::nth_element(v.begin(), at, v.end());
  return *at;
}
inline double median(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto at = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

class Probe {
 public:
  explicit Probe(int threads);
  ThreadTeam& team() { return team_; }
  // Reads `pieces` pieces of 4 MiB, each thread its own contiguous part of a piece, and keeps their times.
  void read(int pieces);
  double read_gbs() const { return kPiece / best_tenth(times_) / 1e9; }
  double median_gbs() const { return kPiece / median(times_) / 1e9; }

 private:
  static constexpr int64_t kPiece = int64_t{4} << 20;
  ThreadTeam team_;
  Buffer memory_;
  int64_t next_ = 0;
  std::vector<double> times_;
};

}  // namespace mettle::bench
