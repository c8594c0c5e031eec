// Clock and power: of a CPU from /sys and /proc, of a GPU from NVML, which is looked for when it is wanted.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

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

// The few calls that are wanted of libnvidia-ml.
class Nvml {
 public:
  explicit Nvml(int index) {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return;
    int (*init)() = nullptr;
    load(init, "nvmlInit_v2");
    load(clock_, "nvmlDeviceGetClockInfo"), load(power_, "nvmlDeviceGetPowerUsage");
    load(limit_, "nvmlDeviceGetEnforcedPowerLimit");
    if (init == nullptr || init() != 0) return;
    started_ = true;
    find(index);
  }
  ~Nvml() {
    int (*shutdown)() = nullptr;
    if (started_) load(shutdown, "nvmlShutdown");
    if (shutdown != nullptr) shutdown();
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;

  std::optional<double> clock_ghz() const {
    unsigned mhz = 0;
    constexpr int kSm = 1;
    if (device_ == nullptr || clock_ == nullptr || clock_(device_, kSm, &mhz) != 0) return std::nullopt;
    return mhz / 1e3;
  }
  std::optional<double> watts() const { return milliwatts(power_); }
  std::optional<double> limit() const { return milliwatts(limit_); }

 private:
  template <class F>
  void load(F& f, const char* name) {
    f = reinterpret_cast<F>(dlsym(library_, name));
  }
  // CUDA counts the devices that CUDA_VISIBLE_DEVICES lists, by number or by the beginning of a name; NVML all.
  void find(int index) {
    int (*by_number)(unsigned, void**) = nullptr;
    int (*by_name)(const char*, void**) = nullptr;
    load(by_number, "nvmlDeviceGetHandleByIndex_v2"), load(by_name, "nvmlDeviceGetHandleByUUID");
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
    int found = 1;
    if (is_number && by_number != nullptr) found = by_number(number, &device_);
    if (!is_number && by_name != nullptr) found = by_name(word.c_str(), &device_);
    if (found != 0) device_ = nullptr;
  }
  std::optional<double> milliwatts(int (*ask)(void*, unsigned*)) const {
    unsigned mw = 0;
    if (device_ == nullptr || ask == nullptr || ask(device_, &mw) != 0) return std::nullopt;
    return mw / 1e3;
  }

  void* library_ = nullptr;
  void* device_ = nullptr;
  bool started_ = false;
  int (*clock_)(void*, int, unsigned*) = nullptr;
  int (*power_)(void*, unsigned*) = nullptr;
  int (*limit_)(void*, unsigned*) = nullptr;
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
  std::unique_ptr<Nvml> nvml;  // null on a CPU
  Values clock, power;
  Clock::time_point last{};
  std::optional<double> energy;
};

Sensors::Sensors(const Device& device) : source_(std::make_unique<Source>()) {
  if (device.kind == DeviceKind::kCuda) source_->nvml = std::make_unique<Nvml>(device.index);
}
Sensors::~Sensors() = default;

void Sensors::sample() {
  Source& s = *source_;
  const auto now = Clock::now();
  const std::chrono::duration<double> passed = now - s.last;
  if (passed.count() < 0.5) return;
  if (s.nvml != nullptr) {
    s.clock.add(s.nvml->clock_ghz());
    s.power.add(s.nvml->watts());
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
  if (source_->nvml != nullptr)
    if (const auto limit = source_->nvml->limit(); limit) text += fmt::format(" of {:.0f} W", *limit);
  return text;
}

}  // namespace mettle
