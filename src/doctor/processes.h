// Processes as /proc tells of them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor/machine.h"

namespace mettle::doctor {

struct Process {
  int64_t pid = 0, parent = 0, session = 0;
  uint64_t start_ticks = 0;  // since boot: with the pid it names a process for good
  double age_seconds = 0;
  int64_t user = -1;
  std::string user_name, name, command;  // command: printable, cut
  bool ignores_hangup = false;           // as under nohup
  char state = '?';
};

std::optional<Process> read_process(const Machine& machine, int64_t pid);
std::vector<Process> all_processes(const Machine& machine);  // as far as they can be read
const Process* find_process(const std::vector<Process>& all, int64_t pid);
std::string age_text(double seconds);  // 3 d 4 h, 5 min, 12 s

}  // namespace mettle::doctor
