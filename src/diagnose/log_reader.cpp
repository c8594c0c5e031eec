#include "diagnose/log_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/error.h"

namespace mettle::diagnose {
namespace {

constexpr size_t kBlock = size_t{1} << 20;
constexpr size_t kProbe = 4096;            // bytes that decide whether a file of a folder is text
constexpr size_t kFilesOfFolder = 10'000;  // more are no logs of one server
constexpr off_t kMostBytes = off_t{1} << 40;
constexpr int kWriterSlices = 200, kSlice_ms = 50;  // how long a named pipe without a writer is waited at: 10 s

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd > 2) close(fd);
  }
};

size_t read_some(int fd, char* to, size_t size, const std::string& name) {
  for (;;) {
    const ssize_t n = read(fd, to, size);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno != EINTR) fail(Code::kInvalidRequest, fmt::format("{}: cannot be read: {}", name, std::strerror(errno)));
  }
}

// Devices without an end (/dev/zero), and files of the kernel as large as all memory (/proc/kcore).
void check_finite(int fd, const std::string& name) {
  struct stat info;
  if (fstat(fd, &info) != 0) fail(Code::kInvalidRequest, fmt::format("{}: {}", name, std::strerror(errno)));
  const bool null_device = S_ISCHR(info.st_mode) && info.st_rdev == makedev(1, 3);
  if (S_ISBLK(info.st_mode) || (S_ISCHR(info.st_mode) && !null_device && isatty(fd) == 0))
    fail(Code::kInvalidRequest, fmt::format("{}: must be a log file, a pipe or a folder, is a device", name));
  if (S_ISREG(info.st_mode) && info.st_size > kMostBytes)
    fail(Code::kInvalidRequest, fmt::format("{}: must be at most {} bytes, is {}", name, kMostBytes, info.st_size));
}

void start_waiting(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

// Of a descriptor that was opened without waiting; it waits from then on. A named pipe reads as empty until somebody
// has opened it for writing.
size_t read_first(int fd, char* to, size_t size, const std::string& name) {
  struct stat info;
  const bool pipe = fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode);
  for (int slice = 0; pipe; ++slice) {
    const ssize_t n = read(fd, to, size);
    if (n > 0) {
      start_waiting(fd);
      return static_cast<size_t>(n);
    }
    if (n < 0) break;  // a writer is there and silent; or an error, which comes again
    pollfd state{fd, POLLIN, 0};
    poll(&state, 1, kSlice_ms);
    if ((state.revents & (POLLIN | POLLHUP)) != 0) break;  // POLLHUP: a writer was here
    if (slice == kWriterSlices)
      fail(Code::kInvalidRequest,
           fmt::format("{}: nobody opened this pipe for writing within {} s", name, kWriterSlices * kSlice_ms / 1000));
  }
  start_waiting(fd);
  return read_some(fd, to, size, name);
}

// Unpacks gzip, also several members one after the other, as log rotation leaves them.
class Inflate {
 public:
  explicit Inflate(std::string name) : name_(std::move(name)) {
    if (inflateInit2(&z_, 15 + 16) != Z_OK) fail(Code::kInternal, "zlib: cannot start");
  }
  ~Inflate() { inflateEnd(&z_); }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;

  template <class Take>
  void feed(char* data, size_t size, Take&& take) {
    z_.next_in = reinterpret_cast<Bytef*>(data);
    z_.avail_in = static_cast<uInt>(size);
    while (z_.avail_in > 0) {
      if (ended_) {
        if (*z_.next_in == 0) {  // padding after the last member
          ++z_.next_in, --z_.avail_in;
          continue;
        }
        inflateReset(&z_);
        ended_ = false;
      }
      z_.next_out = reinterpret_cast<Bytef*>(out_.data());
      z_.avail_out = static_cast<uInt>(out_.size());
      const int rc = inflate(&z_, Z_NO_FLUSH);
      if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        fail(Code::kInvalidRequest, fmt::format("{}: must be a whole gzip file, at byte {}: {}", name_, z_.total_in,
                                                z_.msg != nullptr ? z_.msg : "damaged"));
      take(std::string_view(out_.data(), out_.size() - z_.avail_out));
      ended_ = rc == Z_STREAM_END;
      if (rc == Z_BUF_ERROR && z_.avail_out == out_.size()) break;
    }
  }
  bool ended() const { return ended_; }

 private:
  std::string name_;
  z_stream z_{};
  bool ended_ = false;
  std::vector<char> out_ = std::vector<char>(kBlock);
};

bool is_gzip(std::string_view start) { return start.size() >= 3 && start.substr(0, 3) == "\x1f\x8b\x08"; }
bool is_wide(std::string_view start) {
  return start.size() >= 2 && (start.substr(0, 2) == "\xff\xfe" || start.substr(0, 2) == "\xfe\xff");
}

}  // namespace

LogReader::LogReader(Sink sink, size_t line_limit) : sink_(std::move(sink)), line_limit_(line_limit) {}

void LogReader::read_path(const std::string& path) {
  if (path == "-") {
    check_finite(0, path);
    return read_descriptor(0, path, false);
  }
  struct stat info;
  if (stat(path.c_str(), &info) != 0)
    fail(Code::kInvalidRequest, fmt::format("{}: must be a log file or a folder: {}", path, std::strerror(errno)));
  if (S_ISDIR(info.st_mode)) return read_folder(path);
  if (S_ISSOCK(info.st_mode))
    fail(Code::kInvalidRequest, fmt::format("{}: must be a log file, a pipe or a folder, is a socket", path));
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail(Code::kInvalidRequest, fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  check_finite(file.fd, path);
  read_descriptor(file.fd, path, false);
}

void LogReader::read_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  try {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
      if (!entry.is_regular_file()) continue;
      files.push_back(entry.path().string());
      if (files.size() > kFilesOfFolder)
        fail(Code::kInvalidRequest, fmt::format("{}: must hold at most {} files", path, kFilesOfFolder));
    }
  } catch (const fs::filesystem_error& e) {
    fail(Code::kInvalidRequest, fmt::format("{}: cannot be listed: {}", path, e.code().message()));
  }
  if (files.empty()) fail(Code::kInvalidRequest, fmt::format("{}: must hold a log file, is empty", path));
  std::sort(files.begin(), files.end());
  for (const std::string& name : files) {
    const Descriptor file{open(name.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.fd < 0) fail(Code::kInvalidRequest, fmt::format("{}: cannot be opened: {}", name, std::strerror(errno)));
    read_descriptor(file.fd, name, true);
  }
}

void LogReader::read_descriptor(int fd, const std::string& name, bool in_folder) {
  const std::unique_ptr<char[]> block(new char[kBlock]);
  size_t have = fd == 0 ? read_some(fd, block.get(), kBlock, name) : read_first(fd, block.get(), kBlock, name);
  // Pipes hand over a few bytes at a time; the first three decide what this is.
  while (have > 0 && have < 3) {
    const size_t n = read_some(fd, block.get() + have, kBlock - have, name);
    if (n == 0) break;
    have += n;
  }
  const std::string_view start(block.get(), have);
  const bool gzip = is_gzip(start);
  wide_ = is_wide(start);
  if (in_folder && !gzip && !wide_ && start.substr(0, kProbe).find('\0') != std::string_view::npos) return;
  begin(name);
  if (gzip) {
    Inflate unpack(name);
    for (; have > 0; have = read_some(fd, block.get(), kBlock, name))
      unpack.feed(block.get(), have, [this](std::string_view chunk) { take(chunk); });
    end();
    if (!unpack.ended()) remarks_.push_back(fmt::format("{}: the gzip file ends too early; read up to there", name));
    return;
  }
  for (; have > 0; have = read_some(fd, block.get(), kBlock, name)) take(std::string_view(block.get(), have));
  end();
}

void LogReader::read_text(std::string_view text, const std::string& file) {
  wide_ = is_wide(text);
  begin(file);
  take(text);
  end();
}

void LogReader::begin(const std::string& file) {
  number_ = 0;
  partial_.clear();
  cut_ = false;
  sink_.on_file(file);
}

void LogReader::take(std::string_view chunk) {
  bytes_ += chunk.size();
  while (!chunk.empty()) {
    const auto* newline = static_cast<const char*>(std::memchr(chunk.data(), '\n', chunk.size()));
    const size_t length = newline == nullptr ? chunk.size() : static_cast<size_t>(newline - chunk.data());
    if (newline != nullptr && partial_.empty() && !cut_) {
      line(chunk.substr(0, std::min(length, line_limit_)));
    } else {
      const size_t room = line_limit_ - partial_.size();
      if (!cut_) partial_.append(chunk.substr(0, std::min(length, room)));
      cut_ = cut_ || partial_.size() >= line_limit_;
      if (newline != nullptr) {
        line(partial_);
        partial_.clear();
        cut_ = false;
      }
    }
    chunk.remove_prefix(newline == nullptr ? chunk.size() : length + 1);
  }
}

void LogReader::end() {
  if (!partial_.empty()) line(partial_);
  partial_.clear();
  cut_ = false;
}

void LogReader::line(std::string_view text) {
  ++number_;
  ++lines_;
  if (number_ == 1 && text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
  if (!wide_) return sink_.on_line(text, number_);
  std::string narrow;
  for (const char c : text)
    if (c != '\0' && static_cast<unsigned char>(c) < 0x80) narrow += c;
  sink_.on_line(narrow, number_);
}

}  // namespace mettle::diagnose
