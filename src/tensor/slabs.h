// Pieces of a device's memory out of larger allocations (slabs). A driver hands out memory in steps of 2 MiB: matrices
// of experts, a few MiB each and tens of thousands of them, would lose a quarter of it if each were an allocation. What
// one slab has left at its end is used for a later piece that fits, and slabs grow with what was taken, so that less
// than 1 % is lost with the matrices of real models (slabs_test.cpp).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace mettle {

class Slabs {
 public:
  // allocate(bytes): memory aligned to 256 bytes, or null when there is not so much.
  explicit Slabs(std::function<void*(size_t)> allocate) : allocate_(std::move(allocate)) {}
  // Aligned to 256 bytes; null when there is not so much.
  void* take(size_t bytes);
  size_t bytes() const { return bytes_; }  // allocated so far

 private:
  struct Rest {
    uint8_t* at;
    size_t bytes;
  };
  std::function<void*(size_t)> allocate_;
  std::vector<Rest> rests_;
  size_t bytes_ = 0;
};

}  // namespace mettle
