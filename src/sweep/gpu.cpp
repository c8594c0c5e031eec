#include "sweep/gpu.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <thread>

#include "base/nvml.h"

namespace mettle::sweep {
namespace {

constexpr double kSeconds = 10;  // for the driver to answer

}  // namespace

std::vector<GpuState> read_gpus(const Nvml& nvml, std::string* why_not) {
  std::vector<GpuState> out;
  unsigned count = 0;
  if (nvml.why_not().empty()) nvml.count(count);
  if (why_not != nullptr)
    *why_not = !nvml.loaded()            ? "the driver's library is not here: " + nvml.why_not()
               : !nvml.why_not().empty() ? "the driver's library does not start: " + nvml.why_not()
               : count == 0              ? "NVML sees no GPU"
                                         : "";
  for (unsigned i = 0; i < count; ++i) {
    Nvml::Gpu gpu = nullptr;
    if (nvml.gpu(i, gpu) != 0) continue;
    GpuState state;
    state.name = nvml.text(gpu, "nvmlDeviceGetName");
    if (const auto memory = nvml.memory(gpu)) {
      state.memory_used = memory->used;
      state.memory_total = memory->total;
    }
    state.power_w = nvml.power_mw(gpu).value_or(0) / 1000.0;
    state.power_limit_w = nvml.power_limit_mw(gpu).value_or(0) / 1000.0;
    state.sm_mhz = static_cast<int>(nvml.clock_mhz(gpu).value_or(0));
    state.sm_mhz_most = static_cast<int>(nvml.most_clock_mhz(gpu).value_or(0));
    struct {
      unsigned gpu, memory;
    } busy = {};
    if (nvml.call("nvmlDeviceGetUtilizationRates", gpu, &busy) == 0) state.busy_percent = static_cast<int>(busy.gpu);
    for (const Nvml::Process& process : nvml.processes(gpu)) state.processes.push_back(static_cast<pid_t>(process.pid));
    out.push_back(std::move(state));
  }
  return out;
}

std::vector<GpuState> GpuReader::read(std::string* why_not) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool still_asked = asked_.valid() && asked_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  if (!still_asked) {
    auto task = std::make_shared<std::packaged_task<Answer()>>([ask = ask_] {
      Answer answer;
      answer.gpus = ask(&answer.why_not);
      return answer;
    });
    asked_ = task->get_future().share();
    std::thread([task] { (*task)(); }).detach();
  }
  const bool answered =
      asked_.wait_for(std::chrono::duration<double>(still_asked ? 0 : seconds_)) == std::future_status::ready;
  if (why_not != nullptr)
    *why_not = answered ? asked_.get().why_not : fmt::format("the driver's library gave no answer in {} s", seconds_);
  return answered ? asked_.get().gpus : std::vector<GpuState>();
}

std::vector<GpuState> read_gpus(std::string* why_not) {
  // Neither ends before the program does: a question may be on its way.
  static GpuReader& reader = *new GpuReader(
      [](std::string* why) {
        static const Nvml& nvml = *new Nvml;
        return read_gpus(nvml, why);
      },
      kSeconds);
  return reader.read(why_not);
}

}  // namespace mettle::sweep
