// Processes of this machine as /proc tells of them, and signals that reach the one that was meant: a process is its id
// and its start time.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mettle::sweep {

struct ProcessId {
  pid_t pid = 0;
  uint64_t start = 0;  // clock ticks since boot
  bool operator==(const ProcessId&) const = default;
  auto operator<=>(const ProcessId&) const = default;
};

struct Process {
  ProcessId id;
  pid_t parent = 0;
  bool zombie = false;
  std::string name;  // printable
};

std::optional<Process> read_process(pid_t pid);
std::vector<Process> all_processes();
// Its command line for people: printable, cut.
std::string command_line(pid_t pid);

// Sends the signal when that very process still lives.
bool send(const ProcessId& id, int signal);

// Tells processes that a sweep started from all others. From now on orphans of this process's descendants become its
// children (PR_SET_CHILD_SUBREAPER), so that one which detached itself is still found.
class Family {
 public:
  // `mark`: what the environment of every server of this sweep holds as NAME=value.
  static constexpr const char* kVariable = "SWEEP_MARK";
  explicit Family(std::string mark);

  // Those that carry the mark, descendants of such, and descendants of this process that came after it was made.
  // Zombies and this process itself are left out. `also` are known members, for instance of a cgroup.
  std::vector<Process> members(const std::vector<pid_t>& also = {}) const;
  // SIGKILL to all members, again and again until none is left or the seconds are over; what is left.
  std::vector<Process> end_all(double seconds, const std::vector<pid_t>& also = {}) const;
  const std::string& mark() const { return mark_; }

  // Whoever started this child asks for its status; zombies of other children are taken away by members().
  void expect(pid_t child) { awaited_.insert(child); }
  void forget(pid_t child) { awaited_.erase(child); }

 private:
  bool carries_mark(pid_t pid) const;
  void reap(const Process& dead) const;

  std::string mark_;
  std::set<pid_t> strangers_;  // children of this process that were there before
  std::set<pid_t> awaited_;
};

}  // namespace mettle::sweep
