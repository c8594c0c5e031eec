// A block of CUDA threads on one thread of a CPU: every thread of the block has a stack of its own and runs until it
// waits for others; who goes on then is drawn, so an order that only luck gave is not there for long. Shared memory is
// a static of the kernel, all ones at the start of a block where it is dynamic. Asynchronous copies land when they are
// waited for and not before. Blocks follow each other, or run at once, on a thread of the CPU each.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace modelled {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct Extent {
  unsigned x = 1, y = 1, z = 1;
  Extent(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
extern thread_local Index thread_index, block_index;
extern thread_local Extent block_extent, grid_extent;

inline constexpr size_t kSharedBytes = 228 << 10;
// Runs the kernel for every block and thread, one block after the other.
void run(Extent grid, Extent block, const std::function<void()>& kernel);
void set_dynamic(uint8_t* shared, size_t bytes);  // of this thread of the CPU
// Blocks that wait for each other. `shared`: the dynamic memory, kSharedBytes, of the thread that asks; a block that
// writes behind the first `shared_bytes` of it ends the program.
void run_together(Extent grid, Extent block, const std::function<uint8_t*()>& shared, size_t shared_bytes,
                  const std::function<void()>& kernel);
void set_order(uint64_t seed);

void sync_block();
void sync_warp();
void let_others_run(int64_t times);

void copy_later(void* to, const void* from, bool ok, size_t bytes = 16);
void commit_copies();
void wait_for_copies(int groups_left);
struct Copy {
  void* to;
  const void* from;
  bool ok;
  size_t bytes;
  void land() const;
};
std::vector<Copy> take_open_copies();  // of this thread: not committed, and now somebody else's

// Sixteen words of every lane of the warp, seen by all of it; both calls by all 32 lanes.
using Words = uint32_t[32][16];
uint32_t* own_words();
const Words& all_words();  // waits for the others

int lane();
template <class T>
T from_lane(T value, int from) {
  std::memcpy(own_words(), &value, sizeof value);
  T got;
  std::memcpy(&got, all_words()[from], sizeof got);
  return got;
}

}  // namespace modelled
