#include "sweep/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

namespace mettle::sweep {
namespace {

// Files of /proc have no size; a limit keeps a hostile environment block small.
std::string read_all(const std::string& path, size_t limit) {
  std::string out;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return out;
  char chunk[8192];
  while (out.size() < limit) {
    const ssize_t n = read(fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    out.append(chunk, static_cast<size_t>(n));
  }
  close(fd);
  return out;
}

std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 32 || static_cast<unsigned char>(c) == 127) c = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

std::optional<Process> read_process(pid_t pid) {
  const std::string stat = read_all("/proc/" + std::to_string(pid) + "/stat", 4096);
  const size_t open = stat.find('('), shut = stat.rfind(')');
  if (open == std::string::npos || shut == std::string::npos || shut < open) return std::nullopt;
  Process process;
  process.id.pid = pid;
  process.name = printable(stat.substr(open + 1, shut - open - 1));
  std::istringstream rest(stat.substr(shut + 1));
  std::string state, skipped;
  rest >> state >> process.parent;
  for (int field = 5; field < 22; ++field) rest >> skipped;
  rest >> process.id.start;
  if (!rest) return std::nullopt;
  process.zombie = state == "Z" || state == "X";
  return process;
}

std::vector<Process> all_processes() {
  std::vector<Process> out;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ec)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || end != name.data() + name.size()) continue;
    if (auto process = read_process(pid)) out.push_back(std::move(*process));
  }
  return out;
}

std::string command_line(pid_t pid) {
  std::string text = printable(read_all("/proc/" + std::to_string(pid) + "/cmdline", 400));
  if (text.size() > 160) text = text.substr(0, 160) + " ...";
  return text;
}

bool send(const ProcessId& id, int signal) {
  const auto same = [&] {
    const std::optional<Process> now = read_process(id.pid);
    return now && now->id == id && !now->zombie;
  };
  // The descriptor stands for one process even when its number is given to another one meanwhile.
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, id.pid, 0));
  if (fd < 0) return errno == ENOSYS && same() && kill(id.pid, signal) == 0;
  const bool sent = same() && syscall(SYS_pidfd_send_signal, fd, signal, nullptr, 0) == 0;
  close(fd);
  return sent;
}

Family::Family(std::string mark) : mark_(std::move(mark)) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const Process& process : all_processes())
    if (process.parent == getpid()) strangers_.insert(process.id.pid);
}

// An adopted orphan that ended: nobody else waits for it.
void Family::reap(const Process& dead) const {
  if (dead.parent == getpid() && awaited_.count(dead.id.pid) == 0 && strangers_.count(dead.id.pid) == 0)
    waitpid(dead.id.pid, nullptr, WNOHANG);
}

bool Family::carries_mark(pid_t pid) const {
  const std::string env = read_all("/proc/" + std::to_string(pid) + "/environ", size_t{4} << 20);
  const std::string wanted = std::string(kVariable) + "=" + mark_;
  for (size_t at = env.find(wanted); at != std::string::npos; at = env.find(wanted, at + 1))
    if ((at == 0 || env[at - 1] == '\0') && (at + wanted.size() == env.size() || env[at + wanted.size()] == '\0'))
      return true;
  return false;
}

std::vector<Process> Family::members(const std::vector<pid_t>& also) const {
  const std::vector<Process> all = all_processes();
  const pid_t self = getpid();
  std::vector<Process> out;
  std::set<pid_t> in(also.begin(), also.end());
  for (const Process& process : all) {
    if (process.id.pid == self) continue;
    if (process.zombie) {
      reap(process);
      continue;
    }
    // With children from before, an orphan without the mark may be theirs.
    const bool child = process.parent == self && strangers_.empty();
    if (child || carries_mark(process.id.pid)) in.insert(process.id.pid);
  }
  in.erase(self);
  for (bool grew = true; grew;) {
    grew = false;
    for (const Process& process : all)
      if (process.id.pid != self && in.count(process.parent) != 0 && in.insert(process.id.pid).second) grew = true;
  }
  for (const Process& process : all)
    if (!process.zombie && process.id.pid != self && in.count(process.id.pid) != 0) out.push_back(process);
  return out;
}

std::vector<Process> Family::end_all(double seconds, const std::vector<pid_t>& also) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    const std::vector<Process> left = members(also);
    if (left.empty() || std::chrono::steady_clock::now() >= end) return left;
    for (const Process& process : left) send(process.id, SIGKILL);
    usleep(20'000);
  }
}

}  // namespace mettle::sweep
