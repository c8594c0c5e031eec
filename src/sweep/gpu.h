// GPUs as NVML tells of them, where its library is: memory, processes, power, clocks. Loaded at run time.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mettle::sweep {

struct GpuState {
  std::string name;
  uint64_t memory_used = 0, memory_total = 0;  // bytes
  double power_w = 0, power_limit_w = 0;
  int sm_mhz = 0, sm_mhz_most = 0, busy_percent = 0;
  std::vector<pid_t> processes;
};

// All GPUs, or none. `why_not`: a sentence when they cannot be read.
std::vector<GpuState> read_gpus(std::string* why_not = nullptr);

}  // namespace mettle::sweep
