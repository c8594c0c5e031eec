// A control group of one cell, where the machine lets us make one: nothing in it can run away, whatever it does.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mettle::sweep {

class Cgroup {
 public:
  // Below this process's own group of the unified hierarchy; one that a killed sweep left is taken over. Without the
  // hierarchy, or without the right to: no group.
  explicit Cgroup(const std::string& name);
  ~Cgroup();  // removes it
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  const std::string& path() const { return path_; }  // empty: none
  std::string procs() const { return path_.empty() ? "" : path_ + "/cgroup.procs"; }
  std::vector<pid_t> members() const;
  void kill() const;

 private:
  std::string path_;
};

// Out-of-memory kills that the control group of this process counts; nothing when none counts.
std::optional<uint64_t> oom_kills();

}  // namespace mettle::sweep
