// Memory of the device that a rank runs on: weights, caches, scratch. It lives as long as the Place. On a CPU it is
// host memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/device.h"

namespace mettle {

class Place {
 public:
  virtual ~Place() = default;
  virtual DeviceKind kind() const = 0;
  // 256-byte aligned, zeroed. Fails with kDevice (bytes wanted, bytes free) when it is not to be had.
  virtual void* take(size_t bytes) = 0;
  // Host memory that the device reads and writes too (pinned on a GPU).
  virtual void* take_shared(size_t bytes) = 0;
  // From host memory; `from` may be overwritten when it returns.
  virtual void copy_in(void* to, const void* from, size_t bytes) = 0;
  virtual void copy_out(void* to, const void* from, size_t bytes) = 0;
  size_t bytes() const { return bytes_; }  // taken from the device so far

 protected:
  size_t bytes_ = 0;
};

std::unique_ptr<Place> host_place();

// A short array of floats that a kernel reads (norm weights, frequencies): in host memory until placed.
class FloatArray {
 public:
  FloatArray() = default;
  FloatArray(const std::vector<float>& values);  // copies
  const float* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  float operator[](size_t i) const { return data_[i]; }  // host memory only
  const float* begin() const { return data_; }
  const float* end() const { return data_ + size_; }
  FloatArray placed(Place& place) const;

 private:
  std::shared_ptr<const void> storage_;
  const float* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mettle
