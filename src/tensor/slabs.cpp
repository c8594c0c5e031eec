#include "tensor/slabs.h"

#include <algorithm>

namespace mettle {
namespace {

constexpr size_t kAlign = 256, kStep = size_t{2} << 20;  // kStep: of the driver
constexpr size_t kAlone = size_t{64} << 20;              // such pieces lose less than 2 MiB of it
constexpr size_t kMostSlab = size_t{256} << 20;
constexpr size_t kShare = 16;  // a slab is that part of what was taken: the last one may stay half empty
constexpr size_t kRests = 16;  // of slabs, the largest

size_t up_to(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

void* Slabs::take(size_t bytes) {
  const size_t size = up_to(std::max<size_t>(bytes, 1), kAlign);
  const auto allocated = [&](size_t n) {
    void* p = allocate_(n);
    if (p != nullptr) bytes_ += n;
    return p;
  };
  if (size >= kAlone) return allocated(size);
  const auto smaller = [](const Rest& a, const Rest& b) { return a.bytes < b.bytes; };
  auto fits = std::lower_bound(rests_.begin(), rests_.end(), Rest{nullptr, size}, smaller);
  Rest rest{};
  if (fits != rests_.end()) {
    rest = *fits;
    rests_.erase(fits);
  } else {
    const size_t slab = std::min(std::max(bytes_ / kShare, kStep), kMostSlab);
    rest.bytes =
        up_to(std::max<size_t>(slab / size, 1) * size, kStep);  // whole pieces: most come in one size or its half
    rest.at = static_cast<uint8_t*>(allocated(rest.bytes));
    if (rest.at == nullptr) return allocated(size);  // the last bytes of a device
  }
  if (rest.bytes > size) {
    const Rest left{rest.at + size, rest.bytes - size};
    rests_.insert(std::upper_bound(rests_.begin(), rests_.end(), left, smaller), left);
    if (rests_.size() > kRests) rests_.erase(rests_.begin());
  }
  return rest.at;
}

}  // namespace mettle
