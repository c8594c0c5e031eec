#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include "doctor/checks.h"

namespace mettle::doctor {
namespace {

// Bits of NVML's throttle reasons; 1 (idle) and 2 (clocks as asked for) are no trouble.
struct Reason {
  int64_t bit;
  const char* name;
  Severity severity;
};
constexpr Reason kReasons[] = {
    {0x4, "software power cap", Severity::kWarning},
    {0x8, "hardware slowdown", Severity::kWarning},
    {0x20, "software thermal limit", Severity::kWarning},
    {0x40, "hardware thermal limit", Severity::kWarning},
    {0x80, "power brake", Severity::kWarning},
    {0x10, "sync boost", Severity::kInfo},
    {0x100, "display clocks", Severity::kInfo},
};

struct XidMeaning {
  int code;
  const char* meaning;
  Severity severity;
};
constexpr XidMeaning kXids[] = {
    {13, "exception of a kernel", Severity::kWarning},
    {31, "access to an address that is not mapped: a kernel's fault", Severity::kWarning},
    {43, "a program's channel was stopped", Severity::kWarning},
    {45, "cleaned up after a program that was killed", Severity::kInfo},
    {48, "double-bit memory error", Severity::kError},
    {62, "firmware halted", Severity::kError},
    {63, "a memory row was remapped", Severity::kWarning},
    {64, "a memory row could not be remapped", Severity::kError},
    {74, "NVLink error", Severity::kError},
    {79, "the GPU has fallen off the bus", Severity::kError},
    {92, "many single-bit memory errors", Severity::kWarning},
    {94, "memory error, contained to one program", Severity::kWarning},
    {95, "memory error, not contained", Severity::kError},
    {119, "the GPU's system processor does not answer", Severity::kError},
    {120, "error of the GPU's system processor", Severity::kError},
    {154, "the GPU needs a reset", Severity::kError},
};

void check_power(const GpuFacts& g, const std::string& gpu, Findings& out) {
  const auto limit = g.number("power_limit_mw"), usual = g.number("power_default_mw"), draw = g.number("power_mw");
  if (!limit) return;
  Finding f{"gpu", gpu + " power", Severity::kOk,
            fmt::format("{}cap {} W", draw ? fmt::format("{} W now, ", *draw / 1000) : "", *limit / 1000)};
  if (usual && *limit < *usual) {
    f.severity = Severity::kWarning;
    f.value += fmt::format(", usual cap {} W", *usual / 1000);
    f.why = "capped below what the card was made for: long steps will be slower than measured elsewhere";
    f.fix = fmt::format("sudo nvidia-smi -i {} -pl {}", g.index, *usual / 1000);
  }
  out.push_back(std::move(f));
}

void check_clocks(const GpuFacts& g, const std::string& gpu, Findings& out) {
  const auto clock = g.number("clock_mhz"), most = g.number("clock_most_mhz"), bits = g.number("throttle");
  if (!clock && !bits) return;
  Finding f{"gpu", gpu + " clocks", Severity::kOk};
  if (clock) f.value = fmt::format("{} MHz now{}", *clock, most ? fmt::format(", up to {} MHz", *most) : "");
  if (const auto t = g.number("temperature")) f.value += fmt::format(", {} C", *t);
  for (const Reason& r : kReasons)
    if (bits && (*bits & r.bit) != 0) {
      f.value += fmt::format(", {}", r.name);
      f.severity = std::max(f.severity, r.severity);
    }
  if (f.severity >= Severity::kWarning) {
    f.why = "clocks are held down right now";
    f.fix =
        fmt::format("nvidia-smi -i {} -q -d PERFORMANCE,TEMPERATURE,POWER; look at cooling and power cables", g.index);
  }
  out.push_back(std::move(f));
}

void check_errors(const GpuFacts& g, const std::string& gpu, Findings& out) {
  if (const auto ecc = g.number("ecc")) {
    const int64_t errors = g.number("ecc_uncorrected").value_or(0);
    Finding f{"gpu", gpu + " ECC", Severity::kOk,
              fmt::format("{}, {} uncorrected errors since the driver started", *ecc != 0 ? "on" : "off", errors)};
    if (errors > 0) {
      f.severity = Severity::kError;
      f.why = "memory that cannot be corrected gives wrong answers or ends programs";
      f.fix =
          fmt::format("nvidia-smi -i {} -q -d ECC,ROW_REMAPPER; reset the GPU, replace it if it comes back", g.index);
    }
    out.push_back(std::move(f));
  }
  if (const auto mode = g.number("compute_mode"); mode && *mode != 0)
    out.push_back({"gpu", gpu + " compute mode", Severity::kWarning,
                   *mode == 2   ? "prohibited"
                   : *mode == 3 ? "one process at a time"
                                : fmt::format("{}", *mode),
                   "proofs run in child processes, which this mode refuses",
                   fmt::format("sudo nvidia-smi -i {} -c DEFAULT", g.index)});
  if (const auto mig = g.number("mig"); mig && *mig != 0)
    out.push_back({"gpu", gpu + " MIG", Severity::kInfo, "on", "programs see an instance, not the whole card", ""});
  if (const auto on = g.number("persistence"); on && *on == 0)
    out.push_back({"gpu", gpu + " persistence", Severity::kInfo, "off",
                   "the driver unloads its state when the last program ends: the next start takes seconds longer",
                   fmt::format("sudo nvidia-smi -i {} -pm 1", g.index)});
}

// Who holds its memory. What nobody seems to hold is told too: it is how a dead server's memory shows.
void check_memory_users(const Context& c, const GpuFacts& g, const std::string& gpu, Findings& out) {
  const auto total = g.number("memory_total"), used = g.number("memory_used");
  if (!total || !used || *total < 0) return;
  int64_t told = 0;
  for (const GpuProcess& p : g.processes) {
    told += std::max<int64_t>(p.bytes, 0);
    const Process* who = find_process(c.processes, p.pid);
    const std::string bytes = p.bytes < 0 ? "" : fmt::format(", {}", gib(p.bytes));
    out.push_back({"leftovers", fmt::format("{} process {}", gpu, p.pid), Severity::kInfo,
                   who == nullptr ? fmt::format("not visible from here{}", bytes)
                                  : fmt::format("{} of {}, {} old{}: {}", who->name, who->user_name,
                                                age_text(who->age_seconds), bytes, who->command),
                   "it holds memory and time of the GPU",
                   who == nullptr ? "look outside this container"
                                  : fmt::format("if it is yours and not wanted: kill {}", p.pid)});
  }
  Finding f{"gpu", gpu + " memory", Severity::kOk,
            fmt::format("{} of {} used by {} process(es)", gib(*used), gib(*total), g.processes.size())};
  // The driver itself takes up to about a gibibyte.
  constexpr int64_t kDriver = int64_t{1} << 30;
  if (*used - told > kDriver) {
    f.severity = Severity::kWarning;
    f.value += fmt::format(", {} of it by nobody who is visible", gib(*used - told));
    f.why = "a program in another container or user session, or one that died without giving it back";
    f.fix =
        fmt::format("sudo fuser -v /dev/nvidia{}; nvidia-smi --gpu-reset -i {} when nobody uses it", g.index, g.index);
  }
  out.push_back(std::move(f));
}

// "NVRM: Xid (PCI:0000:01:00): 79, ...": counted by GPU and code.
void check_xids(const Context& c, Findings& out) {
  std::optional<std::string> log;
  std::string where;
  for (const char* path : {"/dev/kmsg", "/var/log/kern.log", "/var/log/messages", "/var/log/syslog"})
    if ((log = c.machine.read(path, size_t{32} << 20))) {
      where = path;
      break;
    }
  if (!log) {
    if (!c.nvml.gpus.empty())
      out.push_back({"gpu", "Xid history", Severity::kInfo, "the kernel log cannot be read",
                     "faults of the GPU are written there", "sudo dmesg | grep -i xid"});
    return;
  }
  std::map<std::pair<std::string, int>, int64_t> seen;
  for (size_t at = 0; (at = log->find("Xid (", at)) != std::string::npos; ++at) {
    const size_t close = log->find(')', at);
    if (close == std::string::npos || close - at > 64) continue;
    char* end = nullptr;
    const long code = std::strtol(log->c_str() + std::min(close + 2, log->size()), &end, 10);
    if (code > 0 && code < 1000 && seen.size() < 256)
      ++seen[{log->substr(at + 5, close - at - 5), static_cast<int>(code)}];
  }
  for (const auto& [key, times] : seen) {
    const auto* known =
        std::find_if(std::begin(kXids), std::end(kXids), [&](const XidMeaning& x) { return x.code == key.second; });
    const bool found = known != std::end(kXids);
    out.push_back(
        {"gpu", fmt::format("Xid {}", key.second), found ? known->severity : Severity::kWarning,
         fmt::format("{} times on {}: {}", times, key.first, found ? known->meaning : "see NVIDIA's table of Xids"),
         "the kernel log keeps faults of the GPU", fmt::format("sudo dmesg -T | grep 'Xid.*: {},'", key.second)});
  }
  if (seen.empty() && !c.nvml.gpus.empty())
    out.push_back({"gpu", "Xid history", Severity::kOk, "none in " + where, "", ""});
}

}  // namespace

void check_gpus(const Context& c, Findings& out) {
  for (const GpuFacts& g : c.nvml.gpus) {
    const std::string gpu = fmt::format("gpu {}", g.index);
    const auto sm = g.number("sm"), memory = g.number("memory_total");
    out.push_back(
        {"gpu", gpu, Severity::kOk,
         fmt::format("{}, {}, {}", g.name.empty() ? "no name" : g.name, sm ? fmt::format("sm{}", *sm) : "sm unknown",
                     memory && *memory >= 0 ? gib(*memory) : "memory unknown"),
         "", ""});
    check_memory_users(c, g, gpu, out);
    check_power(g, gpu, out);
    check_clocks(g, gpu, out);
    check_errors(g, gpu, out);
  }
  check_xids(c, out);
}

}  // namespace mettle::doctor
