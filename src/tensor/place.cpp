#include "tensor/place.h"

#include <cstring>

#include "tensor/buffer.h"

namespace mettle {
namespace {

class HostPlace : public Place {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  void* take(size_t bytes) override {
    buffers_.emplace_back(bytes);
    bytes_ += bytes;
    return buffers_.back().data();
  }
  void* take_shared(size_t bytes) override { return take(bytes); }
  void copy_in(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_out(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }

 private:
  std::vector<Buffer> buffers_;
};

}  // namespace

std::unique_ptr<Place> host_place() { return std::make_unique<HostPlace>(); }

FloatArray::FloatArray(const std::vector<float>& values) : size_(values.size()) {
  if (values.empty()) return;
  auto buffer = std::make_shared<const Buffer>(values.size() * sizeof(float));
  std::memcpy(buffer->data(), values.data(), buffer->size());
  data_ = buffer->as<float>();
  storage_ = std::move(buffer);
}

FloatArray FloatArray::placed(Place& place) const {
  FloatArray out;
  if (size_ == 0) return out;
  auto* data = static_cast<float*>(place.take(size_ * sizeof(float)));
  place.copy_in(data, data_, size_ * sizeof(float));
  out.data_ = data;
  out.size_ = size_;
  return out;
}

}  // namespace mettle
