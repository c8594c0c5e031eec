// Cache blocks or state slots: numbers that are taken and given back. Never allocates after construction.
#pragma once
#include <cstdint>
#include <vector>

namespace mettle {

class IdPool {
 public:
  explicit IdPool(int64_t count);

  int64_t total() const { return total_; }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return total_ - free(); }
  int32_t take();  // fails with kInternal when none is free
  void give(int32_t id);

 private:
  int64_t total_;
  std::vector<int32_t> free_;
};

}  // namespace mettle
