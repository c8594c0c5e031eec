// A fixed team of threads that runs one function at a time on all members and waits for all of them.
// The caller is member 0. Between calls workers spin briefly, then sleep: two fork-joins per layer cost ~1 us each.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace mettle {

// A half-open range of items.
struct Span {
  int64_t begin, end;
};
// The share of member `member` of `members` in `count` items, as even as possible, in member order.
inline Span share_of(int64_t count, int member, int members) {
  return {count * member / members, count * (member + 1) / members};
}

class ThreadTeam {
 public:
  explicit ThreadTeam(int members);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int members() const { return members_; }
  // Calls fn(member) on every member, returns when all have returned. An exception of any member is rethrown here.
  // Not reentrant: fn must not call run() of the same team.
  template <class F>
  void run(F&& fn) {
    run_erased([](void* f, int member) { (*static_cast<std::remove_reference_t<F>*>(f))(member); },
               const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Call = void (*)(void*, int);
  void run_erased(Call call, void* context);
  void work(int member);
  void call_member(int member);

  int members_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::exception_ptr> errors_;
  std::vector<std::thread> threads_;
};

// Calls fn(begin, end) on an even share of [0, count) for each member that gets any; on all of it, here, without a
// team.
template <class F>
void share_out(ThreadTeam* team, int64_t count, F&& fn) {
  if (team == nullptr || team->members() == 1 || count < 2) {
    if (count > 0) fn(int64_t{0}, count);
    return;
  }
  team->run([&](int member) {
    const Span s = share_of(count, member, team->members());
    if (s.begin < s.end) fn(s.begin, s.end);
  });
}

// Threads this process may use: the CPU affinity mask, limited by the cgroup quota where one is set.
int usable_cores();

}  // namespace mettle
