#include "tensor/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace mettle {
namespace {
std::atomic<size_t> g_in_use{0};
BufferSource g_source;
constexpr size_t kHugePage = size_t{2} << 20;

void* map_pages(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
  return p;
}
}  // namespace

void set_buffer_source(const BufferSource& source) { g_source = source; }

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* p = g_source.take != nullptr ? g_source.take(bytes) : map_pages(bytes);
  if (p == nullptr) {
    size_ = 0;
    fail(Code::kDevice,
         fmt::format("memory: {} bytes wanted, none to be had ({} bytes in buffers)", bytes, g_in_use.load()));
  }
  if (g_source.take != nullptr) std::memset(p, 0, bytes);
  give_back_ = g_source.give_back;
  data_ = static_cast<uint8_t*>(p);
  g_in_use += bytes;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (give_back_ != nullptr)
    give_back_(data_);
  else
    munmap(data_, size_);
  g_in_use -= size_;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      give_back_(std::exchange(other.give_back_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(give_back_, other.give_back_);
  return *this;
}

size_t buffer_bytes_in_use() { return g_in_use; }

void* Arena::take(size_t bytes) {
  const size_t rounded = (bytes + kAlign - 1) & ~(kAlign - 1);
  if (used_ + rounded > size_)
    fail(Code::kInternal, fmt::format("arena: {} bytes wanted, {} of {} left", bytes, size_ - used_, size_));
  void* p = memory_ + used_;
  used_ += rounded;
  return p;
}

}  // namespace mettle
