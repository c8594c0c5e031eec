#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace mettle {

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), blocks_(options.blocks), slots_(options.needs_slots ? options.slots : 0) {
  running_.reserve(static_cast<size_t>(options.max_running));
  waiting_.reserve(static_cast<size_t>(options.max_waiting + options.max_running));
  step_.reserve(static_cast<size_t>(options.max_running));
}

void Scheduler::insert_by_id(std::vector<std::unique_ptr<Sequence>>& list, std::unique_ptr<Sequence> sequence) {
  const auto at = std::upper_bound(list.begin(), list.end(), sequence->id,
                                   [](uint64_t id, const std::unique_ptr<Sequence>& s) { return id < s->id; });
  list.insert(at, std::move(sequence));
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) { insert_by_id(waiting_, std::move(sequence)); }

std::unique_ptr<Sequence> Scheduler::remove(uint64_t id) {
  for (auto* list : {&running_, &waiting_})
    for (auto it = list->begin(); it != list->end(); ++it) {
      if ((*it)->id != id) continue;
      std::unique_ptr<Sequence> sequence = std::move(*it);
      list->erase(it);
      release(*sequence);
      return sequence;
    }
  return nullptr;
}

std::unique_ptr<Sequence> Scheduler::remove_any() {
  if (empty()) return nullptr;
  return remove(running_.empty() ? waiting_.front()->id : running_.front()->id);
}

Sequence* Scheduler::find(uint64_t id) {
  const auto at = std::lower_bound(running_.begin(), running_.end(), id,
                                   [](const std::unique_ptr<Sequence>& s, uint64_t wanted) { return s->id < wanted; });
  return at != running_.end() && (*at)->id == id ? at->get() : nullptr;
}

bool Scheduler::grow_to(Sequence& sequence, int tokens) {
  for (; std::ssize(sequence.blocks) < blocks_for(tokens); sequence.blocks.push_back(blocks_.take()))
    if (blocks_.free() == 0) return false;
  return true;
}

void Scheduler::release(Sequence& sequence) {
  for (const int32_t block : sequence.blocks) blocks_.give(block);
  sequence.blocks.clear();
  if (sequence.slot >= 0) slots_.give(sequence.slot);
  sequence.slot = -1;
  sequence.computed = 0;
}

void Scheduler::preempt_youngest() {
  std::unique_ptr<Sequence> youngest = std::move(running_.back());
  running_.pop_back();
  release(*youngest);
  ++preemptions_;
  insert_by_id(waiting_, std::move(youngest));
}

// The oldest is never preempted for another, and the pool holds a whole context, so it always gets on.
bool Scheduler::grow(Sequence& sequence) {
  while (std::ssize(sequence.blocks) < blocks_for(sequence.size())) {
    if (blocks_.free() > 0) {
      sequence.blocks.push_back(blocks_.take());
      continue;
    }
    const bool itself = running_.back().get() == &sequence;
    preempt_youngest();
    if (itself) return false;
  }
  return true;
}

int Scheduler::chunk(const Sequence& sequence, int budget) const {
  const int rows = std::min(sequence.left(), budget);
  if (!options_.deterministic) return rows;
  if (sequence.computed >= sequence.prompt_size) return std::min(rows, 1);
  int end = std::min(sequence.computed + rows, sequence.prompt_size);
  if (end < sequence.prompt_size) end = end / kChunkGrid * kChunkGrid;
  return std::max(end - sequence.computed, 0);
}

Sequence* Scheduler::admit(int budget) {
  if (waiting_.empty() || running() >= options_.max_running) return nullptr;
  Sequence* next = waiting_.front().get();
  if (options_.needs_slots && slots_.free() == 0) return nullptr;
  // One block in reserve for each that runs, or the newcomer would be the next to be preempted.
  const int64_t needed = blocks_for(next->size());
  if (blocks_.free() < needed + running() || chunk(*next, budget) == 0) return nullptr;
  for (int64_t i = 0; i < needed; ++i) next->blocks.push_back(blocks_.take());
  if (options_.needs_slots) next->slot = slots_.take();
  std::unique_ptr<Sequence> admitted = std::move(waiting_.front());
  waiting_.erase(waiting_.begin());
  insert_by_id(running_, std::move(admitted));
  return next;
}

int Scheduler::whole_rows(const Sequence& s) const {
  if (s.computed >= s.prompt_size) return 1;
  return std::min(options_.whole_chunk, s.prompt_size - s.computed);
}

Scheduler::Kind Scheduler::kind_of(const Sequence& s) const {
  if (s.left() == 1) return Kind::kDecode;
  return whole_rows(s) == 1 ? Kind::kRecompute : Kind::kChunks;
}

// The kinds take turns.
std::span<const ScheduledRows> Scheduler::schedule_apart() {
  step_.clear();
  while (admit(options_.step_tokens) != nullptr) {
  }
  for (int turn = 0; turn < 3 && step_.empty(); ++turn) {
    kind_ = static_cast<Kind>((static_cast<int>(kind_) + 1) % 3);
    int budget = options_.step_tokens;
    for (size_t i = 0; i < running_.size(); ++i) {
      Sequence& s = *running_[i];
      const int rows = whole_rows(s);
      if (kind_of(s) != kind_ || rows > budget) continue;
      if (!grow(s)) break;
      step_.push_back({&s, rows});
      budget -= rows;
    }
  }
  return step_;
}

std::span<const ScheduledRows> Scheduler::schedule() {
  if (options_.whole_chunk > 0) return schedule_apart();
  step_.clear();
  int budget = options_.step_tokens;
  const uint64_t preemptions_before = preemptions_;
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& s = *running_[i];
    if (s.left() != 1) continue;
    if (!grow(s)) break;
    step_.push_back({&s, 1});
    --budget;
  }
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& s = *running_[i];
    if (s.left() == 1) continue;
    const int rows = chunk(s, budget);
    if (rows == 0) continue;
    step_.push_back({&s, rows});
    budget -= rows;
  }
  if (preemptions_ != preemptions_before) return step_;
  while (budget > 0) {
    Sequence* admitted = admit(budget);
    if (admitted == nullptr) break;
    step_.push_back({admitted, chunk(*admitted, budget)});
    budget -= step_.back().rows;
  }
  return step_;
}

}  // namespace mettle
