#include "base/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/shared_cores.h"

namespace mettle {
namespace {

// Looks at what is waited for before a thread sleeps. A caller waits for members at work; a member for the next call:
// ~20 us cover the gap between two ops of a step, after that the core is given back.
constexpr int kCallerLooks = 20000, kMemberLooks = 2000;
constexpr int kSharedLooks = 20;
std::atomic<bool> cores_are_shared{false};

int looks(int alone) { return cores_are_shared.load(std::memory_order_relaxed) ? kSharedLooks : alone; }

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void share_cores() { cores_are_shared = true; }

ThreadTeam::ThreadTeam(int members) : members_(members), errors_(static_cast<size_t>(std::max(members, 1))) {
  CHECK(members >= 1 && members <= 1024, "members must be 1..1024, got " + std::to_string(members));
  threads_.reserve(static_cast<size_t>(members - 1));
  for (int i = 1; i < members; ++i) threads_.emplace_back([this, i] { work(i); });
}

ThreadTeam::~ThreadTeam() {
  stop_ = true;
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadTeam::call_member(int member) {
  try {
    call_(context_, member);
  } catch (...) {
    errors_[static_cast<size_t>(member)] = std::current_exception();
  }
}

void ThreadTeam::run_erased(Call call, void* context) {
  call_ = call;
  context_ = context;
  if (members_ > 1) {
    running_.store(members_ - 1, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
  }
  call_member(0);
  const int most = looks(kCallerLooks);
  for (int spins = 0; members_ > 1;) {
    const int left = running_.load(std::memory_order_acquire);
    if (left == 0) break;
    if (++spins < most) {
      relax();
    } else {
      running_.wait(left, std::memory_order_acquire);
    }
  }
  for (std::exception_ptr& e : errors_) {
    if (!e) continue;
    const std::exception_ptr first = std::exchange(e, nullptr);
    for (std::exception_ptr& other : errors_) other = nullptr;
    std::rethrow_exception(first);
  }
}

void ThreadTeam::work(int member) {
  uint32_t seen = 0;
  for (;;) {
    const int most = looks(kMemberLooks);
    for (int spins = 0; epoch_.load(std::memory_order_acquire) == seen;) {
      if (++spins < most) {
        relax();
      } else {
        epoch_.wait(seen, std::memory_order_acquire);
      }
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    call_member(member);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = 1;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = std::max(1, CPU_COUNT(&set));
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0)
    cores = std::clamp(static_cast<int>(std::stod(quota) / period), 1, cores);
  return cores;
}

}  // namespace mettle
