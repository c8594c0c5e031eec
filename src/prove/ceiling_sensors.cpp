// Clock and power: of a CPU from /sys and /proc, of a GPU from NVML, which is looked for when it is wanted.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/nvml.h"
#include "prove/ceiling.h"

namespace mettle {
namespace {

using Clock = std::chrono::steady_clock;

std::optional<double> number_in(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Mean over the cores, GHz.
std::optional<double> cpu_clock() {
  double sum = 0;
  int count = 0;
  for (int cpu = 0; cpu < 1024; ++cpu) {
    const auto khz = number_in(fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", cpu));
    if (!khz) break;
    sum += *khz / 1e6, ++count;
  }
  if (count > 0) return sum / count;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with("cpu MHz") || colon == std::string::npos) continue;
    sum += std::atof(line.c_str() + colon + 1) / 1e3, ++count;
  }
  if (count > 0) return sum / count;
  return std::nullopt;
}

// Joules that the packages have used since some time, all together.
std::optional<double> cpu_energy() {
  double joules = 0;
  bool any = false;
  for (int package = 0; package < 16; ++package) {
    const auto uj = number_in(fmt::format("/sys/class/powercap/intel-rapl:{}/energy_uj", package));
    if (!uj) break;
    joules += *uj / 1e6, any = true;
  }
  if (any) return joules;
  return std::nullopt;
}

// One GPU as NVML tells of it.
class GpuSensors {
 public:
  explicit GpuSensors(int index) {
    if (!nvml_.why_not().empty()) return;
    // CUDA counts the devices that CUDA_VISIBLE_DEVICES lists, by number or by the beginning of a name; NVML all.
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    std::string word = fmt::to_string(index);
    if (visible != nullptr && visible[0] != '\0') {
      std::istringstream list(visible);
      for (int i = 0; i <= index; ++i)
        if (!std::getline(list, word, ',')) return;
    }
    unsigned number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    const bool is_number = error == std::errc() && end == word.data() + word.size();
    const int found =
        is_number ? nvml_.gpu(number, gpu_) : nvml_.call("nvmlDeviceGetHandleByUUID", word.c_str(), &gpu_);
    if (found != 0) gpu_ = nullptr;
  }
  std::optional<double> clock_ghz() const { return thousandth(&Nvml::clock_mhz); }
  std::optional<double> watts() const { return thousandth(&Nvml::power_mw); }
  std::optional<double> limit() const { return thousandth(&Nvml::power_limit_mw); }

 private:
  std::optional<double> thousandth(std::optional<unsigned> (Nvml::*ask)(Nvml::Gpu) const) const {
    const auto value = gpu_ == nullptr ? std::nullopt : (nvml_.*ask)(gpu_);
    return value ? std::optional(*value / 1e3) : std::nullopt;
  }

  Nvml nvml_;
  Nvml::Gpu gpu_ = nullptr;
};

struct Values {
  double sum = 0, least = 1e300, most = 0;
  int count = 0;
  void add(const std::optional<double>& v) {
    if (!v) return;
    sum += *v, ++count;
    least = std::min(least, *v), most = std::max(most, *v);
  }
};

}  // namespace

struct Sensors::Source {
  std::unique_ptr<GpuSensors> gpu;  // null on a CPU
  Values clock, power;
  Clock::time_point last{};
  std::optional<double> energy;
};

Sensors::Sensors(const Device& device) : source_(std::make_unique<Source>()) {
  if (device.kind == DeviceKind::kCuda) source_->gpu = std::make_unique<GpuSensors>(device.index);
}
Sensors::~Sensors() = default;

void Sensors::sample() {
  Source& s = *source_;
  const auto now = Clock::now();
  const std::chrono::duration<double> passed = now - s.last;
  if (passed.count() < 0.5) return;
  if (s.gpu != nullptr) {
    s.clock.add(s.gpu->clock_ghz());
    s.power.add(s.gpu->watts());
  } else {
    s.clock.add(cpu_clock());
    const std::optional<double> energy = cpu_energy();
    if (energy && s.energy && *energy >= *s.energy) s.power.add((*energy - *s.energy) / passed.count());
    s.energy = energy;
  }
  s.last = now;
}

std::string Sensors::clock_text() const {
  const Values& v = source_->clock;
  if (v.count == 0) return "not readable";
  return fmt::format("{:.2f} GHz ({:.2f} to {:.2f})", v.sum / v.count, v.least, v.most);
}

std::string Sensors::power_text() const {
  const Values& v = source_->power;
  if (v.count == 0) return "not readable";
  std::string text = fmt::format("{:.0f} W ({:.0f} to {:.0f})", v.sum / v.count, v.least, v.most);
  if (source_->gpu != nullptr)
    if (const auto limit = source_->gpu->limit(); limit) text += fmt::format(" of {:.0f} W", *limit);
  return text;
}

}  // namespace mettle
