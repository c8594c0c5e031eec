// Owned host memory, 64-byte aligned, zeroed, counted. Large buffers ask for transparent huge pages.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mettle {

class Buffer {
 public:
  Buffer() = default;
  // Fails with kDevice ("out of memory", bytes wanted) when the memory is not to be had.
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

size_t buffer_bytes_in_use();  // all Buffers of this process

// Bump allocation out of one Buffer: scratch of a step. take() fails with kInternal when it does not fit.
class Arena {
 public:
  explicit Arena(size_t bytes) : buffer_(bytes) {}
  void* take(size_t bytes);  // 64-byte aligned
  void reset() { used_ = 0; }
  size_t used() const { return used_; }
  size_t size() const { return buffer_.size(); }

 private:
  Buffer buffer_;
  size_t used_ = 0;
};

}  // namespace mettle
