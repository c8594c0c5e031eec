// GPUs as the driver's library tells of them, where it is: memory, processes, power, clocks.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
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

// All GPUs, or none; what is not told stays 0. `why_not`: a sentence when they cannot be read. A driver that hangs, as
// one does whose GPU was lost, is waited for once; after that there are no GPUs until it answers.
std::vector<GpuState> read_gpus(std::string* why_not = nullptr);
std::vector<GpuState> read_gpus(const Nvml& nvml, std::string* why_not);

// Asks in a thread of its own, so that a question without an answer holds nobody up.
class GpuReader {
 public:
  using Ask = std::function<std::vector<GpuState>(std::string* why_not)>;
  GpuReader(Ask ask, double seconds) : ask_(std::move(ask)), seconds_(seconds) {}
  std::vector<GpuState> read(std::string* why_not);

 private:
  struct Answer {
    std::vector<GpuState> gpus;
    std::string why_not;
  };
  const Ask ask_;
  const double seconds_;
  std::mutex mutex_;
  std::shared_future<Answer> asked_;
};

}  // namespace mettle::sweep
