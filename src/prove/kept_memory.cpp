#include "prove/kept_memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "tensor/buffer.h"

namespace mettle {
namespace {

constexpr size_t kMostKept = size_t{256} << 20;  // bytes; then all of it goes back
constexpr int kMostOfMalloc = 32 << 20;          // the most that it takes as a threshold
constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20;

// Each piece is a mapping of its own, as without it: the border of a Buffer's last page stays where it was.
class Keeper {
 public:
  void* take(size_t bytes) {
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    const std::lock_guard lock(mutex_);
    std::vector<void*>& kept = kept_[size];
    if (!kept.empty()) {
      void* p = kept.back();
      kept.pop_back();
      kept_bytes_ -= size;
      return p;
    }
    void* p = map(size);
    if (p == nullptr) {
      drop();
      p = map(size);
    }
    if (p != nullptr) size_of_.emplace(p, size);
    return p;
  }

  void give_back(void* memory) {
    const std::lock_guard lock(mutex_);
    const size_t size = size_of_.at(memory);
    if (kept_bytes_ + size > kMostKept) drop();
    if (size > kMostKept) {
      munmap(memory, size);
      size_of_.erase(memory);
      return;
    }
    kept_[size].push_back(memory);
    kept_bytes_ += size;
  }

 private:
  static void* map(size_t size) {
    void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    if (size >= kHugePage) madvise(p, size, MADV_HUGEPAGE);
    return p;
  }
  void drop() {
    for (auto& [size, pieces] : kept_)
      for (void* p : pieces) {
        munmap(p, size);
        size_of_.erase(p);
      }
    kept_.clear();
    kept_bytes_ = 0;
  }

  std::mutex mutex_;
  std::unordered_map<void*, size_t> size_of_;
  std::unordered_map<size_t, std::vector<void*>> kept_;
  size_t kept_bytes_ = 0;
};

Keeper& keeper() {
  static auto& keeper = *new Keeper;  // outlives every Buffer
  return keeper;
}

}  // namespace

void keep_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  set_buffer_source({.take = [](size_t bytes) { return keeper().take(bytes); },
                     .give_back = [](void* memory) { keeper().give_back(memory); }});
  mallopt(M_MMAP_THRESHOLD, kMostOfMalloc);
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(kMostKept));
#endif
}

}  // namespace mettle
