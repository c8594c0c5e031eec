#include "prove/kept_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tensor/buffer.h"

namespace mettle {
namespace {

bool zeroed(const Buffer& b) {
  return std::all_of(b.data(), b.data() + b.size(), [](uint8_t x) { return x == 0; });
}

// What is wrong, or null. In a process of its own: memory is kept from then on.
const char* wrong() {
  const size_t before = buffer_bytes_in_use();
  keep_memory();
  Buffer first(10'000);
  if (!zeroed(first)) return "a new buffer is not zeroed";
  const uint8_t* place = first.data();
  std::memset(first.data(), 0xFF, first.size());
  first = {};
  if (buffer_bytes_in_use() != before) return "a kept piece counts as in use";
  Buffer again(9'000);  // the same number of pages
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (again.data() != place) return "the piece was not used again";
#endif
  if (!zeroed(again)) return "a piece that is used again is not zeroed";
  Buffer beside(9'000), larger(50'000);
  if (beside.data() == again.data() || larger.data() == again.data()) return "two buffers share their memory";
  // More than may be kept at a time.
  for (int i = 1; i <= 10; ++i) {
    Buffer large(size_t{30'000'000} + static_cast<size_t>(i) * 8'192);
    large.data()[large.size() - 1] = 1;
  }
  if (!zeroed(Buffer(9'000))) return "a buffer after all was given back is not zeroed";
  return nullptr;
}

TEST(KeptMemory, ComesBackZeroedAtTheSamePlace) {
  EXPECT_EXIT(
      {
        const char* what = wrong();
        std::fprintf(stderr, "%s\n", what != nullptr ? what : "right");
        std::_Exit(what != nullptr);
      },
      testing::ExitedWithCode(0), "right");
}

}  // namespace
}  // namespace mettle
