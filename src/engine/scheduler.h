// Which rows the next step computes. Decode rows first, oldest first; then prefill chunks in order of arrival, until
// the token budget is spent. A sequence is admitted when blocks for all its tokens are free; when a growing one finds
// none, the youngest gives its blocks back and starts again later (recompute).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/id_pool.h"
#include "engine/sequence.h"

namespace mettle {

struct SchedulerOptions {
  int max_running = 1, step_tokens = 1, block_size = 16;
  bool needs_slots = false;    // the model has recurrent state
  bool deterministic = false;  // chunks end on a grid, generated tokens are recomputed one by one
  // With it, on a GPU, whose steps then have two shapes only: chunks are of this many rows (the last one of a prompt is
  // what is left), and a step holds only chunks, only rows that are decoded or only rows that are recomputed. 0: not.
  int whole_chunk = 0;
  int64_t blocks = 0, slots = 0;
  int64_t max_waiting = 0;
};

// Prefill chunks of a deterministic engine end on multiples of this.
inline constexpr int kChunkGrid = 64;

struct ScheduledRows {
  Sequence* sequence = nullptr;
  int rows = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  void add(std::unique_ptr<Sequence> sequence);
  // Takes the sequence out, its blocks and slot go back; null for an unknown id.
  std::unique_ptr<Sequence> remove(uint64_t id);
  std::unique_ptr<Sequence> remove_any();
  Sequence* find(uint64_t id);  // that runs; null for any other
  std::span<const std::unique_ptr<Sequence>> all_running() const { return running_; }
  // Blocks for so many tokens of a sequence that runs, out of those that are free: none is preempted for it.
  bool grow_to(Sequence& sequence, int tokens);
  // Rows of the next step, valid until the next call; empty when there is nothing to do.
  std::span<const ScheduledRows> schedule();

  bool empty() const { return running_.empty() && waiting_.empty(); }
  int64_t running() const { return std::ssize(running_); }
  int64_t waiting() const { return std::ssize(waiting_); }
  const IdPool& blocks() const { return blocks_; }
  const IdPool& slots() const { return slots_; }
  uint64_t preemptions() const { return preemptions_; }

 private:
  int64_t blocks_for(int tokens) const { return (tokens + options_.block_size - 1) / options_.block_size; }
  int chunk(const Sequence& sequence, int budget) const;
  enum class Kind { kChunks, kDecode, kRecompute };
  int whole_rows(const Sequence& sequence) const;  // of its next step; they follow from its own lengths
  Kind kind_of(const Sequence& sequence) const;
  std::span<const ScheduledRows> schedule_apart();
  bool grow(Sequence& sequence);  // a block for its next token; false: it was preempted itself
  void preempt_youngest();
  Sequence* admit(int budget);  // the oldest that waits; null when it does not fit
  void release(Sequence& sequence);
  static void insert_by_id(std::vector<std::unique_ptr<Sequence>>& list, std::unique_ptr<Sequence> sequence);

  SchedulerOptions options_;
  IdPool blocks_, slots_;
  std::vector<std::unique_ptr<Sequence>> running_, waiting_;  // by id, oldest first
  std::vector<ScheduledRows> step_;
  Kind kind_ = Kind::kRecompute;  // of the last step, where they are kept apart
  uint64_t preemptions_ = 0;
};

}  // namespace mettle
