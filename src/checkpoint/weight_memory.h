// Memory for weights that a source makes itself (converted or generated). Everything handed out is valid until
// release(), which keeps small blocks for reuse: a load asks for the same sizes layer after layer. Several threads may
// take at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tensor/buffer.h"

namespace mettle {

class WeightMemory {
 public:
  uint8_t* take(size_t bytes);  // 64-byte aligned, contents undefined
  template <class T>
  T* take_of(int64_t count) {
    return reinterpret_cast<T*>(take(static_cast<size_t>(count) * sizeof(T)));
  }
  void release();

 private:
  static constexpr size_t kBlock = size_t{1} << 20;
  static constexpr size_t kKept = size_t{32} << 20;  // bytes of free blocks kept at most

  std::mutex mutex_;
  std::vector<Buffer> used_, free_;
  size_t offset_ = 0;  // taken of the last block in used_
};

}  // namespace mettle
