// Runs a step on all ranks. On a CPU: rank 0 on the calling thread, every other on a thread of its own, each with its
// team. On a GPU (one rank): enqueued, see GpuStep.
#pragma once
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread_team.h"
#include "engine/gpu_step.h"
#include "models/model.h"
#include "tensor/gpu_event.h"
#include "tensor/place.h"

namespace mettle {

class Runner {
 public:
  // places: one per rank, where the rank's weights are.
  Runner(std::vector<std::unique_ptr<Model>> ranks, std::vector<std::unique_ptr<Place>> places, int threads_per_rank);
  ~Runner();

  // Makes caches, logits and scratch, starts the other ranks, records graphs. After this a step allocates nothing.
  struct Sizes {
    int rows = 0, logit_rows = 0;
    int64_t blocks = 0;
    int block_size = 16;
    int64_t slots = 0;
    int context = 0;
    bool deterministic = false;  // a row's bits may not depend on what else is in its steps
  };
  void ready(const Sizes& sizes);
  // On a CPU: returns when every rank is done; rethrows the first failure. On a GPU the work goes on: see wait().
  void run(const Step& step);
  // A step whose ids are indices into the results of the one ahead of it, which nobody has to have seen yet.
  void run_ahead(const Step& step, const SampleResult* results);
  // Two points in the work: of what is enqueued now; wait_for() returns when it is done, whatever was enqueued since.
  void mark_point(int point);
  void wait_for(int point);
  // The same without captured graphs.
  void run_eagerly(const Step& step);
  // The same with every op's output looked at. After wait(), mark() says where a row first was not finite, of all
  // ranks: kUnmarked (tensor/finite.h), or what Model::place_of takes.
  void run_watched(Step step);
  int32_t mark(int row) const;
  void drop_graphs();
  void drop_graphs(const std::array<bool, kRowBuckets.size()>& buckets);
  void wait();  // until what was enqueued is done

  // Every byte of what a step may not depend on: scratch and logits of all ranks; and of the first blocks and slots of
  // all caches. For proofs, between steps.
  void fill_scratch(uint8_t byte);
  void fill_caches(uint8_t byte, int64_t blocks, int64_t slots);

  // Memory of rank 0's device for what comes after the model; logits [logit_rows, vocab] lie there.
  Place& place() { return *places_.front(); }
  const TensorView& logits() const { return logits_; }
  Stream stream();
  int graphs() const { return gpu_ == nullptr ? 0 : gpu_->graphs(); }

  const std::vector<std::unique_ptr<Model>>& ranks() const { return ranks_; }
  ThreadTeam& team() { return *teams_.front(); }  // rank 0's, for sampling

 private:
  void work(size_t rank);
  void run_rank(size_t rank, const Step& step);
  void fill(void* to, uint8_t byte, size_t bytes);

  std::vector<std::unique_ptr<Place>> places_;  // outlive the models
  std::vector<std::unique_ptr<Model>> ranks_;
  std::vector<std::unique_ptr<ThreadTeam>> teams_;
  Comm comm_;
  std::vector<std::vector<TensorView>> caches_;  // of each rank, as its caches()
  TensorView logits_;
  std::unique_ptr<GpuStep> gpu_;
  std::unique_ptr<gpu::Event> points_[2];  // of a GPU
  std::vector<int32_t> ahead_ids_;
  std::vector<int32_t*> marks_;  // of each rank, for any row of a step
  size_t most_marks_ = 0;

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
