#include "tensor/slabs.h"

#include <gtest/gtest.h>

#include <map>

namespace mettle {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Addresses alone: nobody writes there.
struct Device {
  size_t free = SIZE_MAX, next = size_t{1} << 40, allocations = 0;
  std::map<size_t, size_t> blocks;  // begin to end
  void* allocate(size_t bytes) {
    if (bytes > free) return nullptr;
    free -= bytes;
    ++allocations;
    const size_t at = next;
    blocks[at] = at + bytes;
    next += (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB) + 2 * kMiB;
    return reinterpret_cast<void*>(at);
  }
};

// Experts of a layer after its other matrices, as they are loaded.
std::vector<size_t> pieces_of(size_t hidden, size_t width, size_t experts, size_t layers) {
  std::vector<size_t> all;
  for (size_t l = 0; l < layers; ++l) {
    for (const size_t dense :
         {12 * hidden * hidden / 1024 * 1024, 2 * hidden * hidden, experts * hidden * 2, 4 * hidden})
      all.push_back(dense);
    for (size_t e = 0; e < experts; ++e) {
      all.push_back(2 * width * hidden * 9 / 16 + 8 * width);
      all.push_back(hidden * width * 9 / 16 + 4 * hidden);
    }
  }
  return all;
}

TEST(Slabs, LessThanOnePercentIsLostWithTheMatricesOfRealModels) {
  for (const auto& pieces : {pieces_of(4096, 1024, 512, 24), pieces_of(2048, 512, 256, 40),
                             pieces_of(4096, 1024, 512, 60), pieces_of(6144, 2048, 256, 8)}) {
    Device device;
    Slabs slabs([&](size_t bytes) { return device.allocate(bytes); });
    size_t wanted = 0;
    for (const size_t bytes : pieces) {
      ASSERT_NE(slabs.take(bytes), nullptr);
      wanted += bytes;
    }
    size_t taken = 0;
    for (const auto& [begin, end] : device.blocks) taken += (end - begin + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    EXPECT_LT(static_cast<double>(taken) / static_cast<double>(wanted), 1.01) << wanted / kMiB << " MiB";
    EXPECT_LT(device.allocations, pieces.size() / 8);
  }
}

TEST(Slabs, PiecesLieApartAndInsideWhatWasAllocated) {
  Device device;
  Slabs slabs([&](size_t bytes) { return device.allocate(bytes); });
  std::map<size_t, size_t> pieces;
  size_t random = 1;
  for (int i = 0; i < 5000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const size_t bytes = (random >> 40) % (i % 50 == 0 ? 70 * kMiB : i % 2 == 0 ? 3000 : 3 * kMiB);
    const auto at = reinterpret_cast<size_t>(slabs.take(bytes));
    ASSERT_EQ(at % 256, 0u);
    const auto block = std::prev(device.blocks.upper_bound(at));
    ASSERT_LE(at + std::max<size_t>(bytes, 1), block->second);
    ASSERT_TRUE(pieces.emplace(at, at + std::max<size_t>(bytes, 1)).second);
  }
  for (auto p = pieces.begin(); std::next(p) != pieces.end(); ++p) ASSERT_LE(p->second, std::next(p)->first);
}

TEST(Slabs, TheLastBytesOfADeviceAreHandedOut) {
  Device device;
  Slabs slabs([&](size_t bytes) { return device.allocate(bytes); });
  for (int i = 0; i < 100; ++i) ASSERT_NE(slabs.take(40 * kMiB), nullptr);
  device.free = 45 * kMiB;  // no slab any more
  while (slabs.take(3 * kMiB) != nullptr)
    ;
  EXPECT_LT(device.free, 3 * kMiB);
  EXPECT_EQ(slabs.take(50 * kMiB), nullptr);
}

}  // namespace
}  // namespace mettle
