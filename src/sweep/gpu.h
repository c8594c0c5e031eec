// GPUs as the driver's library tells of them, where it is: memory, processes, power, clocks.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mettle {
class Nvml;
}

namespace mettle::sweep {

struct GpuState {
  std::string name;
  uint64_t memory_used = 0, memory_total = 0;  // bytes
  double power_w = 0, power_limit_w = 0;
  int sm_mhz = 0, sm_mhz_most = 0, busy_percent = 0;
  std::vector<pid_t> processes;
};

// All GPUs, or none; what is not told stays 0. `why_not`: a sentence when they cannot be read.
std::vector<GpuState> read_gpus(std::string* why_not = nullptr);
std::vector<GpuState> read_gpus(const Nvml& nvml, std::string* why_not);

}  // namespace mettle::sweep
