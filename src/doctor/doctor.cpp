#include "doctor/doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "doctor/checks.h"
#include "doctor/leftovers.h"

namespace mettle::doctor {
namespace {

std::vector<std::string> usual_libraries() {
  return {"libcuda.so.1",    "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13",
          "libcudart.so.12", "libnccl.so.2",    "libcudnn.so.9"};
}

}  // namespace

const char* name_of(Severity severity) {
  constexpr const char* kNames[] = {"ok", "info", "warning", "error"};
  return kNames[static_cast<size_t>(severity)];
}

Severity Report::worst() const {
  Severity worst = Severity::kOk;
  for (const Finding& f : findings) worst = std::max(worst, f.severity);
  return worst;
}

Doctor::Doctor(Options options) : options_(std::move(options)), machine_(own_machine_) {
  if (options_.nvml.others.empty()) options_.nvml.others = usual_libraries();
}
Doctor::Doctor(Options options, const Machine& machine) : options_(std::move(options)), machine_(machine) {}

Report Doctor::examine() const {
  Report report;
  const NvmlFacts nvml = ask_nvml(options_.nvml);
  const std::vector<Process> processes = all_processes(machine_);
  const Context context{machine_, nvml, processes, options_.hub_cache, options_.cache_folder};
  for (const auto check : {check_driver, check_gpus, check_fabric, check_cpu, check_memory, check_limits, check_ports,
                           check_hub_cache, check_own_cache})
    check(context, report.findings);

  report.leftovers = own_leftovers(machine_, processes);
  if (!options_.cache_folder.empty()) report.files = own_files(machine_, options_.cache_folder);
  const auto is_own = [&](int64_t pid) { return find_process(report.leftovers, pid) != nullptr; };
  for (const GpuFacts& gpu : nvml.gpus)
    for (const GpuProcess& user : gpu.processes) {
      const Process* p = find_process(processes, user.pid);
      if (p != nullptr && p->user == static_cast<int64_t>(geteuid()) && p->pid != getpid() && !is_own(p->pid) &&
          find_process(report.gpu_users, p->pid) == nullptr)
        report.gpu_users.push_back(*p);
    }
  for (const Process& p : report.leftovers)
    report.findings.push_back({"leftovers", fmt::format("mettle process {}", p.pid), Severity::kWarning,
                               fmt::format("{} old, its parent is gone: {}", age_text(p.age_seconds), p.command),
                               "it may hold a port, memory or a GPU that nobody uses", "mettle doctor --clean"});
  for (const auto& file : report.files)
    report.findings.push_back({"leftovers", "file", Severity::kInfo, file.string(),
                               "half-written by a process that was killed", "mettle doctor --clean"});
  if (report.leftovers.empty() && report.files.empty())
    report.findings.push_back({"leftovers", "of mettle", Severity::kOk, "none", "", ""});
  return report;
}

std::vector<std::string> Doctor::clean(const Report& report, const Ask& ask) const {
  std::vector<std::string> done;
  for (const Process& p : report.leftovers)
    done.push_back(fmt::format("process {} ({}): {}", p.pid, p.command, name_of(end_process(machine_, p))));
  for (const auto& file : report.files) {
    std::error_code error;
    std::filesystem::remove(file, error);
    done.push_back(fmt::format("{}: {}", file.string(), error ? error.message() : "removed"));
  }
  for (const Process& p : report.gpu_users) {
    const std::string who =
        fmt::format("process {} ({}, {} old: {})", p.pid, p.name, age_text(p.age_seconds), p.command);
    if (!ask)
      done.push_back(
          fmt::format("{} is on a GPU and not ours: left alone, since nobody can be asked; kill {}", who, p.pid));
    else if (ask(fmt::format("{} is on a GPU. End it?", who)))
      done.push_back(fmt::format("{}: {}", who, name_of(end_process(machine_, p))));
    else
      done.push_back(fmt::format("{}: left alone", who));
  }
  return done;
}

}  // namespace mettle::doctor
