// Runs a step on all ranks: rank 0 on the calling thread, every other on a thread of its own, each with its team.
#pragma once
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread_team.h"
#include "models/model.h"
#include "tensor/buffer.h"

namespace mettle {

class Runner {
 public:
  Runner(std::vector<std::unique_ptr<Model>> ranks, int threads_per_rank);
  ~Runner();

  // Makes caches and scratch, starts the other ranks. After this a step allocates nothing.
  void ready(int rows, int logit_rows, int64_t blocks, int block_size, int64_t slots);
  // Returns when every rank is done; rethrows the first failure.
  void run(const Step& step);

  const std::vector<std::unique_ptr<Model>>& ranks() const { return ranks_; }
  ThreadTeam& team() { return *teams_.front(); }  // rank 0's, for sampling

 private:
  void work(size_t rank);
  void run_rank(size_t rank, const Step& step);

  std::vector<std::unique_ptr<Model>> ranks_;
  std::vector<std::unique_ptr<ThreadTeam>> teams_;
  std::vector<Buffer> caches_;
  Comm comm_;

  std::mutex mutex_;
  std::condition_variable changed_;
  const Step* step_ = nullptr;
  uint64_t epoch_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace mettle
