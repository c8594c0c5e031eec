#include "models/comm.h"

#include "base/error.h"

namespace mettle {

Comm::Comm(int ranks) : ranks_(ranks) {
  CHECK(ranks >= 1, "ranks must be at least 1, got " + std::to_string(ranks));
  for (auto& buffer : partials_) buffer.resize(static_cast<size_t>(ranks), nullptr);
}

void Comm::publish(int rank, int buffer, const float* partial) {
  partials_[static_cast<size_t>(buffer)][static_cast<size_t>(rank)] = partial;
}

// Ranks on a CPU often outnumber its cores, so waiting sleeps at once.
void Comm::barrier() {
  if (ranks_ == 1) return;
  std::unique_lock lock(mutex_);
  const uint64_t round = round_;
  if (!aborted_ && ++waiting_ == ranks_) {
    waiting_ = 0;
    ++round_;
    changed_.notify_all();
    return;
  }
  changed_.wait(lock, [&] { return aborted_ || round_ != round; });
  if (round_ == round) fail(Code::kInternal, "ranks: another rank failed in this step");
}

void Comm::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  changed_.notify_all();
}

void Comm::reset() {
  const std::lock_guard lock(mutex_);
  aborted_ = false;
  waiting_ = 0;
}

}  // namespace mettle
