#include "tensor/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <utility>

#include "base/error.h"

namespace mettle {
namespace {
std::atomic<size_t> g_in_use{0};
constexpr size_t kHugePage = size_t{2} << 20;
}  // namespace

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    size_ = 0;
    fail(Code::kDevice,
         fmt::format("memory: {} bytes wanted, none to be had ({} bytes in buffers)", bytes, g_in_use.load()));
  }
  if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
  data_ = static_cast<uint8_t*>(p);
  g_in_use += bytes;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  munmap(data_, size_);
  g_in_use -= size_;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

size_t buffer_bytes_in_use() { return g_in_use; }

void* Arena::take(size_t bytes) {
  const size_t rounded = (bytes + 63) & ~size_t{63};
  if (used_ + rounded > buffer_.size())
    fail(Code::kInternal,
         fmt::format("arena: {} bytes wanted, {} of {} left", bytes, buffer_.size() - used_, buffer_.size()));
  void* p = buffer_.data() + used_;
  used_ += rounded;
  return p;
}

}  // namespace mettle
