#include "doctor/leftovers.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>

namespace mettle::doctor {
namespace {

namespace fs = std::filesystem;

struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileId&) const = default;
};

bool id_of(const fs::path& path, FileId& id) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return false;
  id = {info.st_dev, info.st_ino};
  return true;
}

bool runs_our_program(const Machine& machine, int64_t pid) {
  FileId ours, theirs;
  return id_of("/proc/self/exe", ours) && id_of(machine.at(fmt::format("/proc/{}/exe", pid)), theirs) && ours == theirs;
}

// The process number in NAME.PID.N.tmp; 0: not such a name.
int64_t writer_of(std::string name) {
  if (!name.ends_with(".tmp")) return 0;
  name.resize(name.size() - 4);
  int64_t pid = 0;
  for (int part = 0; part < 2; ++part) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos || dot == 0 || dot + 1 == name.size()) return 0;
    const auto [end, error] = std::from_chars(name.data() + dot + 1, name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size() || pid < 0) return 0;
    name.resize(dot);
  }
  return pid;
}

}  // namespace

std::vector<Process> own_leftovers(const Machine& machine, const std::vector<Process>& all) {
  std::vector<Process> mine;
  for (const Process& p : all) {
    if (p.pid == getpid() || p.user != static_cast<int64_t>(geteuid()) || p.state == 'Z' || p.session == p.pid ||
        p.ignores_hangup)
      continue;
    const Process* parent = find_process(all, p.parent);
    if (parent == nullptr || parent->session == p.session || !runs_our_program(machine, p.pid)) continue;
    mine.push_back(p);
  }
  return mine;
}

std::vector<fs::path> own_files(const Machine& machine, const fs::path& folder) {
  constexpr int kMostEntries = 100'000, kMostDepth = 4;
  std::vector<fs::path> found;
  std::error_code error;
  int entries = 0;
  for (fs::recursive_directory_iterator it(machine.at("/" + folder.string()), error), end;
       !error && it != end && ++entries < kMostEntries; it.increment(error)) {
    if (it.depth() >= kMostDepth) it.disable_recursion_pending();
    const int64_t writer = writer_of(it->path().filename().string());
    struct stat info;
    if (writer == 0 || lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
        machine.exists(fmt::format("/proc/{}", writer)))
      continue;
    found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

const char* name_of(Ended ended) {
  switch (ended) {
    case Ended::kTerminated:
      return "ended";
    case Ended::kKilled:
      return "killed, it did not end when asked to";
    case Ended::kGone:
      return "gone already";
    case Ended::kAnother:
      return "left alone: the number belongs to another process now";
    case Ended::kNotAllowed:
      return "left alone: not allowed";
    case Ended::kStays:
      return "does not end: it waits inside the kernel";
  }
  return "?";
}

Ended end_process(const Machine& machine, const Process& process, int patience_ms) {
  const int handle = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(process.pid), 0u));
  if (handle < 0) return errno == ESRCH ? Ended::kGone : Ended::kNotAllowed;
  // The handle names what has the number now: only then is it compared.
  const std::optional<Process> now = read_process(machine, process.pid);
  Ended ended = Ended::kAnother;
  if (now && now->start_ticks == process.start_ticks && now->user == process.user) {
    const auto send = [&](int signal) { return syscall(SYS_pidfd_send_signal, handle, signal, nullptr, 0u) == 0; };
    const auto gone_in = [&](int ms) {
      pollfd waiting{handle, POLLIN, 0};
      return poll(&waiting, 1, ms) > 0;
    };
    if (!send(SIGTERM))
      ended = errno == ESRCH ? Ended::kGone : Ended::kNotAllowed;
    else if (gone_in(patience_ms))
      ended = Ended::kTerminated;
    else
      ended = send(SIGKILL) && gone_in(5'000) ? Ended::kKilled : Ended::kStays;
  }
  close(handle);
  return ended;
}

}  // namespace mettle::doctor
