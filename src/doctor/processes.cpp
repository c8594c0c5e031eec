#include "doctor/processes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

namespace mettle::doctor {
namespace {

std::string printable(std::string text, size_t most) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = c == '\0' ? ' ' : '?';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text.size() > most ? text.substr(0, most) + "..." : text;
}

std::string name_of_user(const Machine& machine, int64_t user) {
  std::istringstream lines(machine.read("/etc/passwd").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const size_t name = line.find(':'), second = line.find(':', name + 1);
    if (name == std::string::npos || second == std::string::npos) continue;
    if (std::strtoll(line.c_str() + second + 1, nullptr, 10) == user) return line.substr(0, name);
  }
  return fmt::format("uid {}", user);
}

}  // namespace

std::optional<Process> read_process(const Machine& machine, int64_t pid) {
  const std::string folder = fmt::format("/proc/{}", pid);
  const std::optional<std::string> stat = machine.read(folder + "/stat", 4096);
  if (!stat) return std::nullopt;
  // "pid (name) state ppid ...": the name may hold anything, ')' too.
  const size_t open = stat->find('('), close = stat->rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  Process p;
  p.pid = pid;
  p.name = printable(stat->substr(open + 1, close - open - 1), 64);
  std::istringstream fields(stat->substr(close + 1));
  std::string skipped;
  fields >> p.state >> p.parent >> skipped >> p.session;
  for (int field = 7; field < 22; ++field) fields >> skipped;
  if (!(fields >> p.start_ticks)) return std::nullopt;
  const double uptime = std::strtod(machine.line("/proc/uptime").c_str(), nullptr);
  p.age_seconds =
      std::max(0.0, uptime - static_cast<double>(p.start_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK)));
  std::istringstream status(machine.read(folder + "/status", 65536).value_or(""));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Uid:")) p.user = std::strtoll(line.c_str() + 4, nullptr, 10);
    // Bit 0 is SIGHUP.
    if (line.starts_with("SigIgn:")) p.ignores_hangup = (std::strtoull(line.c_str() + 7, nullptr, 16) & 1) != 0;
  }
  p.command = printable(machine.read(folder + "/cmdline", 4096).value_or(""), 200);
  p.user_name = name_of_user(machine, p.user);
  return p;
}

std::vector<Process> all_processes(const Machine& machine) {
  std::vector<Process> all;
  for (const std::string& name : machine.list("/proc")) {
    int64_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    if (std::optional<Process> p = read_process(machine, pid)) all.push_back(std::move(*p));
  }
  return all;
}

const Process* find_process(const std::vector<Process>& all, int64_t pid) {
  const auto at = std::find_if(all.begin(), all.end(), [&](const Process& p) { return p.pid == pid; });
  return at == all.end() ? nullptr : &*at;
}

std::string age_text(double seconds) {
  const auto s = static_cast<int64_t>(seconds);
  if (s >= 86400) return fmt::format("{} d {} h", s / 86400, s % 86400 / 3600);
  if (s >= 3600) return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
  return s >= 60 ? fmt::format("{} min", s / 60) : fmt::format("{} s", s);
}

}  // namespace mettle::doctor
