#include "checkpoint/weight_memory.h"

#include <algorithm>
#include <utility>

namespace mettle {

uint8_t* WeightMemory::take(size_t bytes) {
  const size_t size = (bytes + 63) & ~size_t{63};
  const std::lock_guard<std::mutex> lock(mutex_);
  if (used_.empty() || used_.back().size() - offset_ < size) {
    // The smallest free block that fits, else a new one.
    auto best = free_.end();
    for (auto b = free_.begin(); b != free_.end(); ++b)
      if (b->size() >= size && (best == free_.end() || b->size() < best->size())) best = b;
    if (best != free_.end()) {
      used_.push_back(std::move(*best));
      free_.erase(best);
    } else {
      used_.emplace_back(std::max(size, kBlock));
    }
    offset_ = 0;
  }
  uint8_t* p = used_.back().data() + offset_;
  offset_ += size;
  return p;
}

void WeightMemory::release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Buffer& b : used_) free_.push_back(std::move(b));
  used_.clear();
  offset_ = 0;
  std::sort(free_.begin(), free_.end(), [](const Buffer& a, const Buffer& b) { return a.size() < b.size(); });
  size_t kept = 0, count = 0;
  while (count < free_.size() && kept + free_[count].size() <= kKept) kept += free_[count++].size();
  free_.resize(count);
}

}  // namespace mettle
