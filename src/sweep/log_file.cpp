#include "sweep/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace mettle::sweep {

LogFile::LogFile(const std::string& path, uint64_t limit) : half_(std::max<uint64_t>(limit / 2, 1)) {
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(Code::kDevice, fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

LogFile::~LogFile() { finish(); }

void LogFile::put(std::string_view bytes) {
  while (!bytes.empty() && !damaged_) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      damaged_ = true;
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void LogFile::write(std::string_view bytes) {
  if (fd_ < 0) return;
  if (bytes_ < half_) {
    const std::string_view head = bytes.substr(0, half_ - bytes_);
    put(head);
    bytes_ += head.size();
    bytes.remove_prefix(head.size());
  }
  bytes_ += bytes.size();
  if (bytes.size() > half_) {
    left_out_ += bytes.size() - half_;
    bytes.remove_prefix(bytes.size() - half_);
  }
  while (!bytes.empty()) {
    if (tail_.size() < half_) {
      const std::string_view piece = bytes.substr(0, half_ - tail_.size());
      tail_ += piece;
      bytes.remove_prefix(piece.size());
      continue;
    }
    const std::string_view piece = bytes.substr(0, half_ - next_);
    std::memcpy(tail_.data() + next_, piece.data(), piece.size());
    left_out_ += piece.size();
    next_ = (next_ + piece.size()) % half_;
    bytes.remove_prefix(piece.size());
  }
}

void LogFile::finish() {
  if (fd_ < 0) return;
  if (left_out_ > 0) put(fmt::format("\n[sweep: {} bytes left out here]\n", left_out_));
  std::string_view tail = tail_;
  put(tail.substr(next_));
  put(tail.substr(0, next_));
  close(fd_);
  fd_ = -1;
}

}  // namespace mettle::sweep
