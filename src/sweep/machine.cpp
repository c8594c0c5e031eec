#include "sweep/machine.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "base/error.h"
#include "sweep/processes.h"

namespace mettle::sweep {
namespace {

constexpr const char* kShared = "/dev/shm";
constexpr int kFirstPort = 20000, kLastPort = 32000;  // Linux gives outgoing connections 32768 and above

bool can_listen(int port, int family) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return family == AF_INET6;  // a machine without IPv6 has nobody on it
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  bool free = false;
  if (family == AF_INET) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  } else {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno == EADDRNOTAVAIL;
  }
  free = free && (family == AF_INET6 || listen(fd, 1) == 0);
  close(fd);
  return free;
}

// Inodes of sockets that listen on the port.
std::set<std::string> listening_inodes(int port) {
  std::set<std::string> out;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(file);
    std::string line;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      const size_t colon = local.rfind(':');
      if (state == "0A" && colon != std::string::npos &&
          std::strtol(local.c_str() + colon + 1, nullptr, 16) == static_cast<long>(port))
        out.insert(inode);
    }
  }
  return out;
}

std::string link_target(const std::string& path) {
  char target[512];
  const ssize_t n = readlink(path.c_str(), target, sizeof target);
  return n <= 0 ? "" : std::string(target, static_cast<size_t>(n));
}

void note_path(std::string_view path, std::set<std::string>& names) {
  const std::string prefix = std::string(kShared) + "/";
  if (!path.starts_with(prefix) || path.ends_with(" (deleted)")) return;
  const std::string name(path.substr(prefix.size()));
  if (!name.empty() && name.find('/') == std::string::npos) names.insert(name);
}

}  // namespace

bool port_is_free(int port) {
  return listening_inodes(port).empty() && can_listen(port, AF_INET) && can_listen(port, AF_INET6);
}

bool port_has_listener(int port) { return !listening_inodes(port).empty(); }

int pick_port() {
  static std::mt19937 random(std::random_device{}());
  for (int tries = 0; tries < 1000; ++tries) {
    const int port = std::uniform_int_distribution<int>(kFirstPort, kLastPort)(random);
    if (port_is_free(port)) return port;
  }
  fail(Code::kDevice, fmt::format("ports {} to {}: none of 1000 tried is free", kFirstPort, kLastPort));
}

std::string port_owner(int port) {
  const std::set<std::string> inodes = listening_inodes(port);
  for (const Process& process : all_processes()) {
    std::error_code ec;
    const std::string folder = fmt::format("/proc/{}/fd", process.id.pid);
    for (const auto& entry : std::filesystem::directory_iterator(folder, ec)) {
      const std::string target = link_target(entry.path());
      if (!target.starts_with("socket:[") || inodes.count(target.substr(8, target.size() - 9)) == 0) continue;
      const std::string line = command_line(process.id.pid);
      return fmt::format("process {} ({})", process.id.pid, line.empty() ? process.name : line);
    }
  }
  return "a process that cannot be seen from here";
}

SharedFiles shared_files() {
  SharedFiles out;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(kShared, ec)) {
    struct stat info {};
    if (lstat(entry.path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      out.emplace(entry.path().filename(), info.st_ino);
  }
  return out;
}

void note_shared_files(const std::vector<pid_t>& processes, std::set<std::string>& names) {
  for (const pid_t pid : processes) {
    std::error_code ec;
    for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), ec))
      note_path(link_target(entry.path()), names);
    std::ifstream maps(fmt::format("/proc/{}/maps", pid));
    for (std::string line; std::getline(maps, line);) {
      const size_t path = line.find('/');
      if (path != std::string::npos) note_path(std::string_view(line).substr(path), names);
    }
  }
}

std::vector<std::string> remove_left_shared_files(const SharedFiles& before, const std::set<std::string>& used) {
  std::vector<std::string> out;
  for (const auto& [name, inode] : shared_files()) {
    const auto old = before.find(name);
    if (used.count(name) == 0 || (old != before.end() && old->second == inode)) continue;
    unlink((std::string(kShared) + "/" + name).c_str());
    out.push_back(name);
  }
  return out;
}

KernelLog::KernelLog() {
  fd_ = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd_ >= 0 && lseek(fd_, 0, SEEK_END) < 0) {
    close(fd_);
    fd_ = -1;
  }
}

KernelLog::~KernelLog() {
  if (fd_ >= 0) close(fd_);
}

std::string KernelLog::read_new() {
  std::string out;
  char record[8192];
  for (int lost = 0; fd_ >= 0 && out.size() < size_t{1} << 20;) {
    const ssize_t n = read(fd_, record, sizeof record);
    if (n < 0 && (errno == EINTR || (errno == EPIPE && ++lost < 1000))) continue;  // EPIPE: overwritten meanwhile
    if (n <= 0) break;
    // "priority,sequence,microseconds,flags;text\n" and lines of properties
    const std::string_view text(record, static_cast<size_t>(n));
    const size_t semicolon = text.find(';'), end = text.find('\n');
    if (semicolon == std::string_view::npos) continue;
    uint64_t micros = 0;
    const size_t first = text.find(','), second = text.find(',', first + 1);
    if (second < semicolon) micros = std::strtoull(record + second + 1, nullptr, 10);
    out += fmt::format("[{:5}.{:06}] {}\n", micros / 1'000'000, micros % 1'000'000,
                       text.substr(semicolon + 1, end == std::string_view::npos ? end : end - semicolon - 1));
  }
  return out;
}

}  // namespace mettle::sweep
