// The ranks of one process: they publish where their partials are, and wait for each other. With one rank nothing
// waits. When a rank fails, abort() releases the others, which fail too.
#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace mettle {

class Comm {
 public:
  explicit Comm(int ranks);

  int ranks() const { return ranks_; }
  // Two buffers per rank, used in turn: a rank may write one while others still read the other.
  static constexpr int kBuffers = 2;
  void publish(int rank, int buffer, const float* partial);
  std::span<const float* const> partials(int buffer) const { return partials_[static_cast<size_t>(buffer)]; }

  // Returns when every rank has called it; what each wrote before is then visible to all. Fails with kInternal after
  // abort().
  void barrier();
  void abort();
  void reset();  // after an abort, when no rank is inside

 private:
  int ranks_;
  std::array<std::vector<const float*>, kBuffers> partials_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  uint64_t round_ = 0;
  bool aborted_ = false;
};

}  // namespace mettle
