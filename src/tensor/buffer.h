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
  void (*give_back_)(void* memory) = nullptr;  // null: munmap
};

size_t buffer_bytes_in_use();  // all Buffers of this process

// Where the memory of Buffers made from now on comes from. take() returns null when there is none; the memory is zeroed
// by the Buffer. Set once, before other threads run.
struct BufferSource {
  void* (*take)(size_t bytes) = nullptr;
  void (*give_back)(void* memory) = nullptr;
};
void set_buffer_source(const BufferSource& source);

// Bump allocation out of one piece of memory that somebody else owns: scratch of a step. take() fails with kInternal
// when it does not fit.
class Arena {
 public:
  static constexpr size_t kAlign = 256;
  Arena(void* memory, size_t bytes) : memory_(static_cast<uint8_t*>(memory)), size_(bytes) {}
  void* take(size_t bytes);  // aligned to kAlign when the memory is
  void reset() { used_ = 0; }
  size_t used() const { return used_; }
  size_t size() const { return size_; }

 private:
  uint8_t* memory_;
  size_t size_, used_ = 0;
};

}  // namespace mettle
