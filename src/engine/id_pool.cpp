#include "engine/id_pool.h"

#include "base/error.h"

namespace mettle {

IdPool::IdPool(int64_t count) : total_(count) {
  CHECK(count >= 0 && count <= INT32_MAX, "count " + std::to_string(count));
  free_.reserve(static_cast<size_t>(count));
  for (int64_t id = count; id-- > 0;) free_.push_back(static_cast<int32_t>(id));  // low ids first
}

int32_t IdPool::take() {
  CHECK(!free_.empty(), "all " + std::to_string(total_) + " are taken");
  const int32_t id = free_.back();
  free_.pop_back();
  return id;
}

void IdPool::give(int32_t id) {
  CHECK(id >= 0 && id < total_ && used() > 0, "id " + std::to_string(id) + " of " + std::to_string(total_));
  free_.push_back(id);
}

}  // namespace mettle
