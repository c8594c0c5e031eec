#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "doctor/checks.h"

namespace mettle::doctor {
namespace {

constexpr int kPorts[] = {8000, 30000};  // what vLLM's, our and SGLang's servers take unless told otherwise

// "key : value" of /proc/cpuinfo, the first time it stands there.
std::string cpu_field(const std::string& info, const std::string& key) {
  std::istringstream lines(info);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(key)) continue;
    const std::string name = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    if (name == key) return line.substr(std::min(colon + 2, line.size()));
  }
  return "";
}

int64_t meminfo(const Machine& machine, const std::string& key) {
  std::istringstream lines(machine.read("/proc/meminfo").value_or(""));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(key + ":")) return std::strtoll(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  return -1;
}

// The word in brackets: "always [madvise] never".
std::string chosen(const std::string& line) {
  const size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos || close < open
             ? line
             : line.substr(open + 1, close - open - 1);
}

void check_cgroup(const Context& c, Findings& out) {
  // Inside a container this is its own; elsewhere the process's own group below the mount.
  std::string folder = "/sys/fs/cgroup";
  const std::string own = c.machine.line("/proc/self/cgroup");
  if (own.starts_with("0::/") && own.find("..") == std::string::npos &&
      c.machine.exists(folder + own.substr(3) + "/memory.max"))
    folder += own.substr(3);
  const auto limit = c.machine.number(folder + "/memory.max");
  const int64_t total = meminfo(c.machine, "MemTotal");
  if (limit && (total < 0 || *limit < total))
    out.push_back({"memory", "cgroup memory", *limit < (int64_t{8} << 30) ? Severity::kWarning : Severity::kInfo,
                   fmt::format("at most {}, of {} of the machine", gib(*limit), gib(total)),
                   "beyond it the kernel ends processes of this group; its log says so, the program's does not",
                   "raise it: docker run --memory, systemd MemoryMax="});
  std::istringstream cpu(c.machine.line(folder + "/cpu.max"));
  std::string quota;
  int64_t period = 0;
  if (cpu >> quota >> period && quota != "max" && period > 0) {
    const double cores = std::strtod(quota.c_str(), nullptr) / static_cast<double>(period);
    out.push_back({"cpu", "cgroup CPU", Severity::kInfo, fmt::format("at most {:.1f} cores", cores),
                   "more threads than that only wait for each other", "docker run --cpus, systemd CPUQuota="});
  }
  if (const auto pids = c.machine.number(folder + "/pids.max"); pids && *pids < 1024)
    out.push_back({"limits", "cgroup pids", Severity::kWarning, fmt::format("at most {} threads", *pids),
                   "a server with its loaders and children starts some hundreds", "docker run --pids-limit"});
}

}  // namespace

std::string gib(int64_t bytes) {
  const double g = static_cast<double>(bytes) / (int64_t{1} << 30);
  return g >= 0.1 || bytes == 0 ? fmt::format("{:.1f} GiB", g) : fmt::format("{:.1f} MiB", g * 1024);
}

void check_cpu(const Context& c, Findings& out) {
  const std::string info = c.machine.read("/proc/cpuinfo").value_or("");
  const std::string flags = " " + cpu_field(info, "flags") + " ";
  std::string features;
  for (const char* flag : {"avx2", "avx512f", "avx512_bf16", "amx_tile"})
    if (flags.find(fmt::format(" {} ", flag)) != std::string::npos) features += fmt::format(" {}", flag);
  Finding f{"cpu", "CPU", Severity::kOk,
            fmt::format("{},{}", info.empty() ? "unknown" : cpu_field(info, "model name"),
                        features.empty() ? " none of ours" : features)};
  if (features.empty()) {
    f.severity = Severity::kWarning;
    f.why = "without AVX2 products on the CPU are plain loops, many times slower";
  }
  out.push_back(std::move(f));
  size_t nodes = 0;
  for (const std::string& name : c.machine.list("/sys/devices/system/node"))
    nodes += name.starts_with("node") && name.size() > 4 && name[4] >= '0' && name[4] <= '9';
  Finding numa{"cpu", "NUMA", Severity::kOk, fmt::format("{} node(s)", std::max<size_t>(nodes, 1))};
  if (nodes > 1 && c.machine.number("/proc/sys/kernel/numa_balancing").value_or(0) != 0) {
    numa.severity = Severity::kInfo;
    numa.value += ", the kernel moves pages between them";
    numa.why = "pages that wander while a model is read cost bandwidth";
    numa.fix = "sudo sysctl kernel.numa_balancing=0; or bind: numactl --cpunodebind=0 --membind=0";
  }
  out.push_back(std::move(numa));
  if (const std::string governor = c.machine.line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
      governor == "powersave")
    out.push_back({"cpu", "governor", Severity::kInfo, governor, "short steps run before the clock has risen",
                   "sudo cpupower frequency-set -g performance"});
}

void check_memory(const Context& c, Findings& out) {
  const int64_t total = meminfo(c.machine, "MemTotal"), available = meminfo(c.machine, "MemAvailable");
  if (total > 0) {
    Finding f{"memory", "RAM", Severity::kOk, fmt::format("{} available of {}", gib(available), gib(total))};
    if (available < total / 20) {
      f.severity = Severity::kWarning;
      f.why = "loading reads whole checkpoints through this memory";
      f.fix = "ps aux --sort=-rss | head";
    }
    out.push_back(std::move(f));
  }
  const std::string pages = chosen(c.machine.line("/sys/kernel/mm/transparent_hugepage/enabled"));
  if (!pages.empty()) {
    Finding f{"memory", "huge pages", Severity::kOk, "transparent: " + pages};
    if (pages == "never") {
      f.severity = Severity::kInfo;
      f.why = "weights on small pages cost the CPU a few per cent";
      f.fix = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
    }
    out.push_back(std::move(f));
  }
  if (const std::optional<Space> shm = c.machine.space("/dev/shm"); shm && c.machine.exists("/dev/shm")) {
    Finding f{"memory", "/dev/shm", Severity::kOk, fmt::format("{} free of {}", gib(shm->free), gib(shm->total))};
    if (shm->free < (int64_t{1} << 30)) {
      f.severity = Severity::kWarning;
      f.why =
          "engines of several processes (SGLang, vLLM, NCCL) exchange through it and end with a bus error when it is "
          "full";
      f.fix = "docker run --shm-size=16g, or --ipc=host; ls -la /dev/shm for what dead programs left";
    }
    out.push_back(std::move(f));
  }
  check_cgroup(c, out);
  const std::string first = c.machine.read("/proc/1/cgroup", 4096).value_or("");
  std::string kind;
  if (c.machine.exists("/.dockerenv")) kind = "Docker";
  if (c.machine.exists("/run/.containerenv")) kind = "Podman";
  if (first.find("kubepods") != std::string::npos || c.machine.exists("/var/run/secrets/kubernetes.io"))
    kind = "Kubernetes";
  if (!kind.empty())
    out.push_back(
        {"memory", "container", Severity::kInfo, kind,
         "limits, /dev/shm and visible processes are the container's; what others leave on the GPU is not seen", ""});
}

void check_limits(const Context& c, Findings& out) {
  std::map<std::string, std::string> soft;
  std::istringstream lines(c.machine.read("/proc/self/limits").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.size() < 27 || !line.starts_with("Max ")) continue;
    const std::string name = line.substr(4, line.find("  ") - 4);
    std::istringstream rest(line.substr(26));
    rest >> soft[name];
  }
  const auto add = [&](const std::string& name, const std::string& key, auto wrong, Severity severity, const char* why,
                       const char* fix) {
    const auto at = soft.find(key);
    if (at == soft.end()) return;
    const bool unlimited = at->second == "unlimited";
    const int64_t value = std::strtoll(at->second.c_str(), nullptr, 10);
    Finding f{"limits", name, Severity::kOk, at->second};
    if (!unlimited && (key == "locked memory" || key == "core file size"))  // the others are counts
      f.value = value < (1 << 20) ? fmt::format("{} bytes", value) : gib(value);
    if (!unlimited && wrong(value)) {
      f.severity = severity;
      f.why = why;
      f.fix = fix;
    }
    out.push_back(std::move(f));
  };
  add(
      "open files", "open files", [](int64_t v) { return v < 4096; }, Severity::kWarning,
      "one for each connection and each shard; beyond it connections are refused",
      "ulimit -n 65536; systemd LimitNOFILE=");
  add(
      "locked memory", "locked memory", [](int64_t v) { return v < (int64_t{1} << 30); }, Severity::kInfo,
      "RDMA and pinned buffers of other engines need it", "ulimit -l unlimited; systemd LimitMEMLOCK=infinity");
  add(
      "processes", "processes", [](int64_t v) { return v < 4096; }, Severity::kWarning,
      "threads count too: a server with its loaders starts some hundreds", "ulimit -u 65536");
  add(
      "core files", "core file size", [](int64_t v) { return v == 0; }, Severity::kInfo,
      "a crash leaves no core file to look at", "ulimit -c unlimited");
}

void check_ports(const Context& c, Findings& out) {
  // Lines of /proc/net/tcp: "0: 0100007F:1F40 00000000:0000 0A ..."; 0A is listening, the tenth field the inode.
  std::map<int, std::string> listening;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(c.machine.read(table, size_t{8} << 20).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, skipped, inode;
      if (!(fields >> slot >> local >> remote >> state) || state != "0A") continue;
      for (int i = 0; i < 5; ++i) fields >> skipped;
      fields >> inode;
      const size_t colon = local.rfind(':');
      if (colon != std::string::npos)
        listening[static_cast<int>(std::strtol(local.c_str() + colon + 1, nullptr, 16))] = inode;
    }
  }
  for (const int port : kPorts) {
    Finding f{"ports", fmt::format("port {}", port), Severity::kOk, "free"};
    if (const auto at = listening.find(port); at != listening.end()) {
      const std::string socket = fmt::format("socket:[{}]", at->second);
      f.severity = Severity::kInfo;
      f.value = "in use";
      for (const Process& p : c.processes) {
        const std::string folder = fmt::format("/proc/{}/fd", p.pid);
        std::error_code error;
        for (const std::string& fd : c.machine.list(folder))
          if (std::filesystem::read_symlink(c.machine.at(folder + "/" + fd), error).string() == socket && !error)
            f.value = fmt::format("in use by {} (process {} of {}, {} old)", p.name, p.pid, p.user_name,
                                  age_text(p.age_seconds));
      }
      f.why = "a server that is to listen there ends at once";
      f.fix = fmt::format("choose another: --port N; who it is: sudo ss -ltnp 'sport = :{}'", port);
    }
    out.push_back(std::move(f));
  }
}

void check_hub_cache(const Context& c, Findings& out) {
  const std::optional<Space> space = c.machine.space(c.hub_cache);
  if (!space) return;
  size_t models = 0;
  for (const std::string& name : c.machine.list(c.hub_cache)) models += name.starts_with("models--");
  Finding f{"cache", "hub cache", Severity::kOk,
            fmt::format("{}: {} model(s), {} free", c.hub_cache, models, gib(space->free))};
  if (space->free < (int64_t{50} << 30)) {
    f.severity = Severity::kWarning;
    f.why = "a model of 35 billion weights in NVFP4 takes 22 GiB, one of 397 billion 234 GiB";
    f.fix = "HF_HUB_CACHE=/on/a/larger/disk; du -sh the models--* there";
  }
  out.push_back(std::move(f));
}

void check_own_cache(const Context& c, Findings& out) {
  namespace fs = std::filesystem;
  if (!c.cache_folder.starts_with('/')) return;
  std::error_code ignored;
  std::string folder = c.cache_folder;  // or what is above it, where it would be made
  while (folder.size() > 1 && !fs::exists(c.machine.at(folder), ignored))
    folder.resize(std::max<size_t>(folder.rfind('/'), 1));
  const fs::path there = c.machine.at(folder);
  Finding f{"cache", "proofs", Severity::kOk, c.cache_folder};
  if (!fs::is_directory(there, ignored))
    f.value += fmt::format(": {} is no folder", folder);
  else if (access(there.c_str(), W_OK | X_OK) != 0)
    f.value += fmt::format(": {} cannot be written", folder);
  else
    return out.push_back(std::move(f));
  f.severity = Severity::kWarning;
  f.why = "proofs and timings are not kept: every start takes as long as the first";
  f.fix = "XDG_CACHE_HOME=/a/folder/of/yours";
  out.push_back(std::move(f));
}

}  // namespace mettle::doctor
