// mettle doctor: what about this machine stands in the way of serving, why it matters and what to do. Looks, and
// changes nothing until clean() is called.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "doctor/machine.h"
#include "doctor/nvml.h"
#include "doctor/processes.h"

namespace mettle::doctor {

struct Options {
  std::string hub_cache;     // folder of downloaded models
  std::string cache_folder;  // of this program: verdicts and timings
  NvmlOptions nvml;
};

struct Report {
  Findings findings;
  std::vector<Process> leftovers;            // our own
  std::vector<std::filesystem::path> files;  // our own
  std::vector<Process> gpu_users;            // others' processes on a GPU, of this user
  Severity worst() const;
};

class Doctor {
 public:
  explicit Doctor(Options options);
  // For tests: a machine of their own making, which must outlive the doctor.
  Doctor(Options options, const Machine& machine);

  Report examine() const;

  // Ends our own leftovers and removes our own files. Whatever else is on a GPU and belongs to this user is ended when
  // `ask` says yes to the question; without `ask` it is left alone. Returns what was done, a line each.
  using Ask = std::function<bool(const std::string& question)>;
  std::vector<std::string> clean(const Report& report, const Ask& ask) const;

 private:
  Options options_;
  Machine own_machine_;
  const Machine& machine_;
};

std::string report_text(const Report& report, bool colour);
std::string report_json(const Report& report);

}  // namespace mettle::doctor
