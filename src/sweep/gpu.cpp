#include "sweep/gpu.h"

#include <dlfcn.h>

#include <array>
#include <mutex>
#include <type_traits>

namespace mettle::sweep {
namespace {

// The few entry points of NVML's stable interface that are used, by their documented types.
using Handle = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned int gpu, memory;
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long memory;
  unsigned int gpu_instance, compute_instance;
};
constexpr unsigned kClockSm = 1;

struct Nvml {
  int (*init)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Handle*) = nullptr;
  int (*name)(Handle, char*, unsigned) = nullptr;
  int (*memory)(Handle, Memory*) = nullptr;
  int (*power)(Handle, unsigned*) = nullptr;
  int (*power_limit)(Handle, unsigned*) = nullptr;
  int (*clock)(Handle, unsigned, unsigned*) = nullptr;
  int (*most_clock)(Handle, unsigned, unsigned*) = nullptr;
  int (*utilization)(Handle, Utilization*) = nullptr;
  int (*processes)(Handle, unsigned*, ProcessInfo*) = nullptr;
  std::string why_not;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why_not = "libnvidia-ml.so.1 is not here";
      return;
    }
    const auto find = [&](auto& out, const char* symbol) {
      out = reinterpret_cast<std::remove_reference_t<decltype(out)>>(dlsym(library, symbol));
      if (out == nullptr && why_not.empty()) why_not = std::string("libnvidia-ml.so.1 has no ") + symbol;
    };
    find(init, "nvmlInit_v2");
    find(count, "nvmlDeviceGetCount_v2");
    find(handle, "nvmlDeviceGetHandleByIndex_v2");
    find(name, "nvmlDeviceGetName");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(power, "nvmlDeviceGetPowerUsage");
    find(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(clock, "nvmlDeviceGetClockInfo");
    find(most_clock, "nvmlDeviceGetMaxClockInfo");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    find(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (why_not.empty() && init() != 0) why_not = "nvmlInit failed: no driver, or one that does not answer";
  }
};

}  // namespace

std::vector<GpuState> read_gpus(std::string* why_not) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  static const Nvml nvml;
  std::vector<GpuState> out;
  unsigned count = 0;
  if (nvml.why_not.empty() && nvml.count(&count) != 0) count = 0;
  if (why_not != nullptr) *why_not = !nvml.why_not.empty() ? nvml.why_not : count == 0 ? "NVML sees no GPU" : "";
  for (unsigned i = 0; i < count && i < 64; ++i) {
    Handle gpu = nullptr;
    if (nvml.handle(i, &gpu) != 0) continue;
    GpuState state;
    char name[128] = {};
    Memory memory = {};
    Utilization busy = {};
    unsigned value = 0;
    if (nvml.name(gpu, name, sizeof name) == 0) state.name = name;
    if (nvml.memory(gpu, &memory) == 0) {
      state.memory_used = memory.used;
      state.memory_total = memory.total;
    }
    if (nvml.power(gpu, &value) == 0) state.power_w = value / 1000.0;
    if (nvml.power_limit(gpu, &value) == 0) state.power_limit_w = value / 1000.0;
    if (nvml.clock(gpu, kClockSm, &value) == 0) state.sm_mhz = static_cast<int>(value);
    if (nvml.most_clock(gpu, kClockSm, &value) == 0) state.sm_mhz_most = static_cast<int>(value);
    if (nvml.utilization(gpu, &busy) == 0) state.busy_percent = static_cast<int>(busy.gpu);
    std::array<ProcessInfo, 64> processes = {};
    unsigned found = processes.size();
    if (nvml.processes(gpu, &found, processes.data()) == 0)
      for (unsigned p = 0; p < found && p < processes.size(); ++p)
        state.processes.push_back(static_cast<pid_t>(processes[p].pid));
    out.push_back(std::move(state));
  }
  return out;
}

}  // namespace mettle::sweep
