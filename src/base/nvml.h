// Questions about NVIDIA GPUs to the driver's library (NVML), which is opened at run time. Any function may be missing
// or refuse; a broken driver may also crash or hang in one, so whoever cannot afford that asks in a child process.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace mettle {

class Nvml {
 public:
  using Gpu = void*;
  static constexpr const char* kLibrary = "libnvidia-ml.so.1";
  static constexpr unsigned kMostGpus = 64, kMostProcesses = 256;
  static constexpr int kMissing = -1;  // result of a function that the library does not have

  // Opens and starts it. Never throws: why_not() tells.
  explicit Nvml(const std::string& library = kLibrary);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool loaded() const { return library_ != nullptr; }
  const std::string& why_not() const { return why_not_; }  // empty: it answers
  int code() const { return code_; }                       // of its start; 0 also when it is not loaded

  // Calls a function of NVML's C interface, arguments as it declares them; 0: it was answered.
  template <class... A>
  int call(const char* name, A... arguments) const {
    auto* function = reinterpret_cast<int (*)(A...)>(symbol(name));
    return function == nullptr ? kMissing : function(arguments...);
  }
  std::string error_text(int code) const;

  int count(unsigned& gpus) const;  // at most kMostGpus
  int gpu(unsigned index, Gpu& out) const { return call("nvmlDeviceGetHandleByIndex_v2", index, &out); }

  // An answer that is one number, or a text.
  template <class... A>
  std::optional<unsigned> number(Gpu gpu, const char* function, A... before) const {
    unsigned value = 0;
    return call(function, gpu, before..., &value) == 0 ? std::optional(value) : std::nullopt;
  }
  std::string text(const char* function) const;
  std::string text(Gpu gpu, const char* function) const;

  std::optional<unsigned> clock_mhz(Gpu gpu) const { return number(gpu, "nvmlDeviceGetClockInfo", kSmClock); }
  std::optional<unsigned> most_clock_mhz(Gpu gpu) const { return number(gpu, "nvmlDeviceGetMaxClockInfo", kSmClock); }
  std::optional<unsigned> power_mw(Gpu gpu) const { return number(gpu, "nvmlDeviceGetPowerUsage"); }
  std::optional<unsigned> power_limit_mw(Gpu gpu) const { return number(gpu, "nvmlDeviceGetEnforcedPowerLimit"); }

  struct Memory {
    unsigned long long total, free, used;
  };
  std::optional<Memory> memory(Gpu gpu) const;
  struct Process {
    unsigned pid;
    unsigned long long bytes;  // all bits set: not told
    unsigned gpu_instance, compute_instance;
  };
  std::vector<Process> processes(Gpu gpu) const;  // that compute on it

 private:
  static constexpr int kSmClock = 1;
  void* symbol(const char* name) const;

  void* library_ = nullptr;
  int code_ = 0;
  std::string why_not_;
};

}  // namespace mettle
