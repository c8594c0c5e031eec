// Steps that run ahead: see EngineLoop.
#include <utility>

#include "engine/loop.h"
#include "engine/sampler.h"
#include "models/block.h"

namespace mettle {

// What happens between two steps that the device could not know: requests come or go, a sequence ends for another
// reason than its length (its row of the step ahead is then computed for nothing, in blocks and a slot that are still
// its own, and whoever gets them next is enqueued behind it), penalties count the token, somebody looks at a step.
bool EngineLoop::may_run_ahead() {
  const Probe& probe = parts_.probe;
  if (!on_gpu() && probe.ahead == nullptr) return false;
  if (parts_.scheduler.deterministic || probe.on_logits || (probe.route_steps != nullptr && *probe.route_steps))
    return false;
  if (watched_ || watches(counted_.steps + 1)) return false;
  const bool full = scheduler_.running() == parts_.scheduler.max_running;
  if (std::ssize(chosen_) != scheduler_.running() || (scheduler_.waiting() > 0 && !full)) return false;
  {
    const std::lock_guard lock(mutex_);
    if (stop_ || cancel_all_ || !arrived_.empty() || !cancelled_.empty() || !accused_.empty()) return false;
  }
  for (const Sequence* s : chosen_)
    if (!sampled_alone(*s)) return false;
  return true;
}

void EngineLoop::run_ahead() {
  if (!may_run_ahead()) return;
  ahead_.ids.clear();
  ahead_.logit_rows.clear();
  ahead_.batch.clear();
  sample_rows_.clear();
  for (size_t i = 0; i < chosen_.size(); ++i) {
    Sequence& s = *chosen_[i];
    if (s.generated() + 1 >= s.most_new) continue;  // the token that comes is its last
    if (!scheduler_.grow_to(s, s.size() + 1)) return ahead_.requests.clear();
    const int row = static_cast<int>(ahead_.ids.size());
    ahead_.batch.push_back({.first_row = row,
                            .q_len = 1,
                            .ctx_len = s.computed,
                            .block_table = s.blocks.data(),
                            .state_in = s.slot,
                            .state_out = s.slot});
    ahead_.ids.push_back(chosen_rows_[i]);
    ahead_.logit_rows.push_back(row);
    ahead_.requests.push_back(s.id);
    sample_rows_.push_back(sample_row(s, 1));
  }
  const int rows = static_cast<int>(ahead_.ids.size());
  if (rows == 0) return;
  parts_.runner->run_ahead(
      {.batch = {.rows = rows, .block_size = parts_.scheduler.block_size, .sequences = ahead_.batch},
       .ids = ahead_.ids.data(),
       .logit_rows = ahead_.logit_rows,
       .logits = view_of(parts_.runner->logits().data, DType::kF32, {rows, parts_.info.vocab_size})},
      sample_stages_[turn_ ^ 1]->results(0).data());
  enqueue_sampling(turn_, static_cast<size_t>(rows));
  if (parts_.probe.ahead != nullptr) ++*parts_.probe.ahead;
}

std::span<const ScheduledRows> EngineLoop::landed() {
  landed_.clear();
  if (ahead_.requests.empty()) return landed_;
  chosen_.clear();
  chosen_rows_.clear();
  std::swap(ids_, ahead_.ids);
  std::swap(logit_rows_, ahead_.logit_rows);
  watched_ = false;
  for (size_t row = 0; row < ahead_.requests.size(); ++row) {
    Sequence* s = scheduler_.find(ahead_.requests[row]);
    if (s == nullptr) continue;
    landed_.push_back({s, 1});
    chosen_.push_back(s);
    chosen_rows_.push_back(static_cast<int>(row));
  }
  ahead_.requests.clear();
  if (landed_.empty()) parts_.runner->wait_for(std::exchange(turn_, turn_ ^ 1));
  return landed_;
}

std::span<const SampleResult> EngineLoop::results_of_chosen(int turn) {
  const auto last = static_cast<size_t>(chosen_rows_.back()) + 1;
  const std::span<const SampleResult> all = sample_stages_[turn]->results(last);
  if (last == chosen_.size()) return all;
  own_results_.clear();
  for (const int row : chosen_rows_) own_results_.push_back(all[static_cast<size_t>(row)]);
  return own_results_;
}

}  // namespace mettle
