#include "doctor/nvml.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/nvml.h"

namespace mettle::doctor {
namespace {

using nlohmann::json;

constexpr size_t kMostAnswerBytes = size_t{4} << 20;

struct PciInfo {
  char bus_legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};

json ask_gpu(const Nvml& nvml, unsigned index, Nvml::Gpu gpu) {
  json numbers = json::object();
  const auto keep = [&](const char* key, std::optional<unsigned> value) {
    if (value) numbers[key] = *value;
  };
  const auto number = [&](const char* key, const char* function, auto... before) {
    keep(key, nvml.number(gpu, function, before...));
  };
  int major = 0, minor = 0;
  if (nvml.call("nvmlDeviceGetCudaComputeCapability", gpu, &major, &minor) == 0) numbers["sm"] = 10 * major + minor;
  if (const auto memory = nvml.memory(gpu)) {
    numbers["memory_total"] = memory->total;
    numbers["memory_used"] = memory->used;
  }
  keep("power_mw", nvml.power_mw(gpu));
  keep("power_limit_mw", nvml.power_limit_mw(gpu));
  number("power_default_mw", "nvmlDeviceGetPowerManagementDefaultLimit");
  unsigned least = 0, most = 0;
  if (nvml.call("nvmlDeviceGetPowerManagementLimitConstraints", gpu, &least, &most) == 0)
    numbers["power_most_mw"] = most;
  keep("clock_mhz", nvml.clock_mhz(gpu));
  keep("clock_most_mhz", nvml.most_clock_mhz(gpu));
  number("temperature", "nvmlDeviceGetTemperature", 0);
  unsigned long long bits = 0;
  if (nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, &bits) == 0) numbers["throttle"] = bits;
  unsigned current = 0, pending = 0;
  if (nvml.call("nvmlDeviceGetEccMode", gpu, &current, &pending) == 0) numbers["ecc"] = current;
  unsigned long long errors = 0;  // uncorrected, since the driver was loaded
  if (nvml.call("nvmlDeviceGetTotalEccErrors", gpu, 1, 0, &errors) == 0) numbers["ecc_uncorrected"] = errors;
  number("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration");
  number("pcie_generation_most", "nvmlDeviceGetMaxPcieLinkGeneration");
  number("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth");
  number("pcie_width_most", "nvmlDeviceGetMaxPcieLinkWidth");
  number("persistence", "nvmlDeviceGetPersistenceMode");
  number("compute_mode", "nvmlDeviceGetComputeMode");
  if (nvml.call("nvmlDeviceGetMigMode", gpu, &current, &pending) == 0) numbers["mig"] = current;
  PciInfo pci = {};
  const bool has_pci = nvml.call("nvmlDeviceGetPciInfo_v3", gpu, &pci) == 0;
  json processes = json::array();
  for (const Nvml::Process& p : nvml.processes(gpu))
    processes.push_back({p.pid, p.bytes == ~0ull ? json(-1) : json(p.bytes)});
  return {{"index", index},
          {"name", nvml.text(gpu, "nvmlDeviceGetName")},
          {"uuid", nvml.text(gpu, "nvmlDeviceGetUUID")},
          {"bus", has_pci ? std::string(pci.bus_id, strnlen(pci.bus_id, 31)) : ""},
          {"numbers", numbers},
          {"processes", processes}};
}

json ask_library(const std::string& name) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return {{"name", name}, {"path", ""}, {"error", why == nullptr ? "does not load" : why}};
  }
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr)
    return {{"name", name}, {"path", ""}, {"error", ""}};
  char* real = realpath(map->l_name, nullptr);
  const std::string path = real != nullptr ? real : map->l_name;
  std::free(real);
  return {{"name", name}, {"path", path}, {"error", ""}};
}

// Says one part after the other, so that what was said before a crash or a hang is not lost.
template <class Say>
void ask_all(const NvmlOptions& options, const Say& say) {
  const Nvml nvml(options.library);
  if (!nvml.loaded()) {
    say({{"missing", nvml.why_not()}});
  } else if (!nvml.why_not().empty()) {
    say({{"failure", nvml.why_not()}, {"code", nvml.code()}});
  } else {
    int cuda = 0;
    nvml.call("nvmlSystemGetCudaDriverVersion_v2", &cuda);
    unsigned count = 0;
    const int counted = nvml.count(count);
    say({{"driver", nvml.text("nvmlSystemGetDriverVersion")},
         {"library", nvml.text("nvmlSystemGetNVMLVersion")},
         {"cuda", cuda}});
    if (counted != 0) say({{"failure", nvml.error_text(counted)}, {"code", counted}});
    std::vector<Nvml::Gpu> gpus;
    for (unsigned i = 0; i < count; ++i) {
      Nvml::Gpu gpu = nullptr;
      const int got = nvml.gpu(i, gpu);
      if (got != 0) {
        say({{"failure", fmt::format("GPU {}: {}", i, nvml.error_text(got))}, {"code", got}});
        continue;
      }
      gpus.push_back(gpu);
      say({{"gpu", ask_gpu(nvml, i, gpu)}});
    }
    for (size_t a = 0; a < gpus.size(); ++a)
      for (size_t b = a + 1; b < gpus.size(); ++b) {
        unsigned status = 0, ancestor = 0;
        const bool known = nvml.call("nvmlDeviceGetP2PStatus", gpus[a], gpus[b], 0, &status) == 0;
        const bool above = nvml.call("nvmlDeviceGetTopologyCommonAncestor", gpus[a], gpus[b], &ancestor) == 0;
        say({{"peer", {a, b, known ? static_cast<int64_t>(status) : -1, above ? static_cast<int64_t>(ancestor) : -1}}});
      }
  }
  for (const std::string& name : options.others) say({{"other", ask_library(name)}});
  say({{"end", true}});
}

// Bad bytes of a name are replaced; a value of another type is a library that answers nonsense.
struct Reader {
  NvmlFacts facts;
  bool ended = false;

  static std::string text(const json& j, const char* key) {
    return j.contains(key) && j[key].is_string() ? j[key].get<std::string>().substr(0, 512) : "";
  }
  void line(const std::string& text_line) {
    try {
      part(json::parse(text_line));
    } catch (const json::exception&) {
      // The library ran wild in the child's memory; what was said before stands.
    }
  }
  void part(const json& j) {
    if (j.contains("missing")) {
      facts.not_installed = true;
      facts.failure = text(j, "missing");
    } else if (j.contains("failure")) {
      facts.failure = text(j, "failure");
      facts.failure_code = j.value("code", 0);
    } else if (j.contains("driver")) {
      facts.driver = text(j, "driver");
      facts.library = text(j, "library");
      facts.cuda_version = j.value("cuda", int64_t{0});
    } else if (j.contains("gpu")) {
      const json& g = j["gpu"];
      GpuFacts gpu{
          .index = g.value("index", 0), .name = text(g, "name"), .uuid = text(g, "uuid"), .bus = text(g, "bus")};
      for (const auto& [key, value] : g["numbers"].items())
        if (value.is_number_integer()) gpu.numbers[key] = value.get<int64_t>();
      for (const json& p : g["processes"]) gpu.processes.push_back({p[0].get<int64_t>(), p[1].get<int64_t>()});
      facts.gpus.push_back(std::move(gpu));
    } else if (j.contains("peer")) {
      const json& p = j["peer"];
      facts.peers.push_back({p[0].get<int>(), p[1].get<int>(), p[2].get<int64_t>(), p[3].get<int64_t>()});
    } else if (j.contains("other")) {
      facts.libraries.push_back({text(j["other"], "name"), text(j["other"], "path"), text(j["other"], "error")});
    } else if (j.contains("end")) {
      ended = true;
    }
  }
};

[[noreturn]] void child(const NvmlOptions& options, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_DFL);
  // Chatter of libraries belongs nowhere, their core files neither.
  const int nowhere = open("/dev/null", O_WRONLY);
  if (nowhere < 0 || dup2(nowhere, STDOUT_FILENO) < 0 || dup2(nowhere, STDERR_FILENO) < 0) _exit(1);
  prctl(PR_SET_DUMPABLE, 0);
  ask_all(options, [&](const json& part) {
    const std::string line = part.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    for (size_t at = 0; at < line.size();) {
      const ssize_t written = write(out, line.data() + at, line.size() - at);
      if (written <= 0) _exit(1);
      at += static_cast<size_t>(written);
    }
  });
  _exit(0);
}

}  // namespace

std::optional<int64_t> GpuFacts::number(const std::string& key) const {
  const auto at = numbers.find(key);
  return at == numbers.end() ? std::nullopt : std::optional(at->second);
}

NvmlFacts ask_nvml(const NvmlOptions& options) {
  NvmlFacts nothing;
  int ends[2];
  if (pipe(ends) != 0) {
    nothing.failure = fmt::format("no pipe: {}", std::strerror(errno));
    return nothing;
  }
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    child(options, ends[1]);
  }
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    nothing.failure = fmt::format("no child process: {}", std::strerror(errno));
    return nothing;
  }
  Reader reader;
  std::string rest;
  size_t total = 0;
  bool late = false;
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(options.deadline_ms);
  while (total < kMostAnswerBytes) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd waiting{ends[0], POLLIN, 0};
    const int ready = left.count() <= 0 ? 0 : poll(&waiting, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      late = true;
      break;
    }
    char piece[8192];
    const ssize_t got = read(ends[0], piece, sizeof piece);
    if (got <= 0) break;
    total += static_cast<size_t>(got);
    rest.append(piece, static_cast<size_t>(got));
    for (size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1))
      reader.line(rest.substr(0, end));
  }
  close(ends[0]);
  kill(pid, SIGKILL);
  // A process that hangs inside the driver may not die at all; then it is left to init.
  int status = 0;
  for (int tries = 0; tries < 100 && waitpid(pid, &status, WNOHANG) == 0; ++tries) usleep(10'000);
  if (!reader.ended && reader.facts.failure.empty())
    reader.facts.failure =
        late ? fmt::format("gave no answer in {:.1f} s", options.deadline_ms / 1e3)
             : fmt::format("ended by signal {} while it was asked", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
  return std::move(reader.facts);
}

}  // namespace mettle::doctor
