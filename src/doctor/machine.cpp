#include "doctor/machine.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

namespace mettle::doctor {

namespace fs = std::filesystem;

fs::path Machine::at(const std::string& path) const {
  return root_ / path.substr(std::min(path.find_first_not_of('/'), path.size()));
}

std::optional<std::string> Machine::read(const std::string& path, size_t limit) const {
  const int fd = open(at(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return std::nullopt;
  std::string text;
  char piece[16384];
  bool good = true;
  while (text.size() < limit) {
    const ssize_t got = ::read(fd, piece, std::min(sizeof piece, limit - text.size()));
    if (got > 0) {
      text.append(piece, static_cast<size_t>(got));
      continue;
    }
    if (got < 0 && (errno == EINTR || errno == EPIPE)) continue;  // EPIPE: the kernel log dropped records meanwhile
    good = got == 0 || errno == EAGAIN || !text.empty();
    break;
  }
  close(fd);
  return good ? std::optional(text) : std::nullopt;
}

std::string Machine::line(const std::string& path) const {
  std::string text = read(path, 4096).value_or("");
  text.erase(std::min(text.find('\n'), text.size()));
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r' || text.back() == '\t' || text.back() == '\0'))
    text.pop_back();
  return text;
}

std::optional<int64_t> Machine::number(const std::string& path) const {
  const std::string text = line(path);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::vector<std::string> Machine::list(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(at(folder), error), end; !error && it != end && names.size() < 65'536;
       it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool Machine::exists(const std::string& path) const {
  std::error_code error;
  return fs::exists(at(path), error);
}

std::optional<Space> Machine::space(const std::string& path) const {
  fs::path there = at(path);
  std::error_code error;
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  struct statvfs info;
  if (statvfs(there.c_str(), &info) != 0) return std::nullopt;
  const auto unit = static_cast<int64_t>(info.f_frsize);
  return Space{static_cast<int64_t>(info.f_blocks) * unit, static_cast<int64_t>(info.f_bavail) * unit};
}

}  // namespace mettle::doctor
