// The second fact that a row asks for, and what the numbers of a line say beyond its wording.
#pragma once
#include <optional>
#include <string>

#include "diagnose/events.h"

namespace mettle::diagnose {

// What is known about the whole run when its events are judged.
struct Context {
  const Table& table;
  const Run& run;
  const Options& options;
  std::string device;   // "sm120" or empty
  std::string toolkit;  // "12.8" or empty
  bool kernel_log = false;
  bool kernel_oom = false;  // the kernel's log or the cgroup tells of an out-of-memory kill of a server or compiler
  uint64_t died_seq = 0;    // last line that tells of the end of a process, 0: none
};

struct Finding {
  const Event* event = nullptr;
  std::string cause;
  Confidence confidence = Confidence::kLow;
  std::string remark;  // replaces the row's sentence
};

// The finding of an event, or nothing when its second fact is missing.
std::optional<Finding> judge(const Event& event, const Context& context);

// 120 of "sm120", "sm_120a", "120", "12.0"; 0 when it is none.
int sm_number(const std::string& device);
// An out-of-memory line of the kernel that speaks of a server, a worker or a compiler, not of some other program.
bool kills_server(const Event& event);

}  // namespace mettle::diagnose
