#include "block.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace modelled {

thread_local Index thread_index, block_index;
thread_local Extent block_extent, grid_extent;

namespace {

constexpr size_t kStack = 64 << 10;
constexpr int kMostWaits = 50'000'000;

struct Thread {
  void* stack_pointer = nullptr;
  std::vector<char> stack;
  bool done = false;
  int parity = 0;  // of its warp's words: two sets, so that nobody overwrites what a slower lane still reads
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
};
struct Barrier {
  int arrived = 0;
  unsigned round = 0;
};

thread_local std::vector<Thread> threads;
thread_local std::vector<Words> words;  // [warp][parity]
thread_local std::vector<Barrier> warps;
thread_local Barrier whole;
thread_local int count = 0, current = 0, left = 0;
thread_local void* scheduler = nullptr;
thread_local const std::function<void()>* body = nullptr;
thread_local uint8_t* dynamic = nullptr;
thread_local size_t dynamic_bytes = 0;
thread_local std::minstd_rand order;

extern "C" void modelled_switch(void** from, void* to);
asm(R"(
.globl modelled_switch
modelled_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "modelled: thread %d: %s\n", current, why);
  std::abort();
}

void go_to(int next) {
  void** from = &threads[static_cast<size_t>(current)].stack_pointer;
  current = next;
  thread_index = {static_cast<unsigned>(next), 0, 0};
  modelled_switch(from, threads[static_cast<size_t>(next)].stack_pointer);
}

void yield() {
  int next = static_cast<int>(order() % static_cast<unsigned>(count));
  while (threads[static_cast<size_t>(next)].done) next = (next + 1) % count;
  if (next != current) go_to(next);
}

void wait_until_over(const Barrier& b, unsigned round) {
  for (int waits = 0; b.round == round; ++waits) {
    if (waits == kMostWaits) give_up("a barrier is never complete");
    yield();
  }
}

void wait_at(Barrier& b, int all) {
  const unsigned round = b.round;
  if (++b.arrived == all) {
    b.arrived = 0;
    ++b.round;
  } else {
    wait_until_over(b, round);
  }
}

void start() {
  (*body)();
  threads[static_cast<size_t>(current)].done = true;
  if (--left == 0) {
    void* unused;
    modelled_switch(&unused, scheduler);
  }
  yield();
  give_up("runs after its end");
}

void run_block() {
  for (int i = 0; i < count; ++i) {
    Thread& t = threads[static_cast<size_t>(i)];
    t.stack.resize(kStack);
    t.done = false;
    t.parity = 0;
    t.groups.clear();
    t.open.clear();
    auto* top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(t.stack.data() + kStack) & ~uintptr_t{15});
    *--top = nullptr;  // start() is entered as if called: its stack is 8 off a multiple of 16
    *--top = reinterpret_cast<void*>(&start);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    t.stack_pointer = top;
  }
  left = count;
  current = 0;
  thread_index = {};
  modelled_switch(&scheduler, threads[0].stack_pointer);
}

void take_up(Extent grid, Extent block, const std::function<void()>& kernel) {
  count = static_cast<int>(block.x);
  block_extent = block;
  grid_extent = grid;
  body = &kernel;
  const auto warp_count = static_cast<size_t>((count + 31) / 32);
  threads.resize(std::max(threads.size(), static_cast<size_t>(count)));
  words = std::vector<Words>(2 * warp_count);
  warps.assign(warp_count, {});
}
void run_block_at(Index at) {
  block_index = at;
  if (dynamic != nullptr) std::memset(dynamic, 0xFF, dynamic_bytes);
  run_block();
}

}  // namespace

void set_dynamic(uint8_t* shared, size_t bytes) { dynamic = shared, dynamic_bytes = bytes; }
void set_order(uint64_t seed) { order.seed(static_cast<unsigned>(seed)); }

void run(Extent grid, Extent block, const std::function<void()>& kernel) {
  take_up(grid, block, kernel);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) run_block_at({x, y, z});
}
void run_together(Extent grid, Extent block, const std::function<uint8_t*()>& shared, size_t shared_bytes,
                  const std::function<void()>& kernel) {
  static constexpr uint8_t kNobodys = 0xA5;
  if (shared_bytes > kSharedBytes) give_up("more shared memory is asked for than a block may have");
  std::vector<std::thread> blocks;
  for (unsigned x = 0; x < grid.x; ++x)
    blocks.emplace_back([&, x, seed = order()] {
      set_order(seed);
      uint8_t* const memory = shared();
      std::fill(memory + shared_bytes, memory + kSharedBytes, kNobodys);
      set_dynamic(memory, shared_bytes);
      take_up(grid, block, kernel);
      run_block_at({x, 0, 0});
      if (std::any_of(memory + shared_bytes, memory + kSharedBytes, [](uint8_t b) { return b != kNobodys; }))
        give_up("a block has written behind the shared memory that its launch asks for");
    });
  for (std::thread& b : blocks) b.join();
}

int lane() { return current % 32; }
void sync_block() { wait_at(whole, count); }
void sync_warp() { wait_at(warps[static_cast<size_t>(current / 32)], 32); }
void let_others_run(int64_t times) {
  while (times-- > 0) yield();
}

void copy_later(void* to, const void* from, bool ok, size_t bytes) {
  threads[static_cast<size_t>(current)].open.push_back({to, from, ok, bytes});
}
void Copy::land() const {
  if (ok)
    std::memcpy(to, from, bytes);
  else
    std::memset(to, 0, bytes);
}
std::vector<Copy> take_open_copies() { return std::exchange(threads[static_cast<size_t>(current)].open, {}); }
void commit_copies() {
  Thread& t = threads[static_cast<size_t>(current)];
  t.groups.push_back(std::move(t.open));
  t.open.clear();
}
void wait_for_copies(int groups_left) {
  auto& groups = threads[static_cast<size_t>(current)].groups;
  while (static_cast<int>(groups.size()) > groups_left) {
    for (const Copy& c : groups.front()) c.land();
    groups.erase(groups.begin());
  }
}

uint32_t* own_words() {
  const Thread& t = threads[static_cast<size_t>(current)];
  return words[static_cast<size_t>(current / 32 * 2 + t.parity)][lane()];
}
const Words& all_words() {
  sync_warp();
  Thread& t = threads[static_cast<size_t>(current)];
  const Words& all = words[static_cast<size_t>(current / 32 * 2 + t.parity)];
  t.parity ^= 1;
  return all;
}

}  // namespace modelled
