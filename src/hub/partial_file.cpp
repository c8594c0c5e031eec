#include "hub/partial_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace mettle::hub {
namespace {

[[noreturn]] void fail_on(const std::filesystem::path& path, const char* what) {
  fail(Code::kDevice, fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(errno)));
}

Descriptor open_file(const std::filesystem::path& path) {
  Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (file.get() < 0) fail_on(path, "open");
  return file;
}

void write_all(const Descriptor& file, const std::filesystem::path& path, int64_t at, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(file.get(), bytes.data(), bytes.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail_on(path, "write");
    at += written;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
}

int64_t size_of_file(const Descriptor& file) {
  struct stat info;
  return fstat(file.get(), &info) == 0 ? static_cast<int64_t>(info.st_size) : -1;
}

// First line of the state; one '0' or '1' for each chunk follows.
std::string head_of(const RemoteFile& file) { return fmt::format("mettle chunks 1 {} {}\n", file.size, kChunkBytes); }

}  // namespace

PartialFile::PartialFile(const CacheFolder& cache, const RemoteFile& file, Descriptor lock)
    : data_path_(cache.blob(file.sum + ".mettle.incomplete")),
      state_path_(cache.blob(file.sum + ".mettle.chunks")),
      blob_path_(cache.blob(file.sum)),
      file_(file),
      lock_(std::move(lock)),
      done_(static_cast<size_t>((file.size + kChunkBytes - 1) / kChunkBytes)) {
  // A prefix of the Python client's.
  const std::filesystem::path theirs = cache.blob(file.sum + ".incomplete");
  struct stat info;
  int64_t prefix = 0;
  if (access(state_path_.c_str(), F_OK) != 0 && lstat(theirs.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
      info.st_size <= file.size && rename(theirs.c_str(), data_path_.c_str()) == 0)
    prefix = info.st_size;
  data_ = open_file(data_path_);
  state_ = open_file(state_path_);

  const std::string head = head_of(file);
  std::string state(head.size() + done_.size(), '\0');
  const bool whole = size_of_file(state_) == static_cast<int64_t>(state.size()) && size_of_file(data_) == file.size &&
                     pread(state_.get(), state.data(), state.size(), 0) == static_cast<ssize_t>(state.size());
  if (whole && state.starts_with(head)) {
    for (size_t i = 0; i < done_.size(); ++i) done_[i] = state[head.size() + i] == '1' ? 1 : 0;
    return;
  }
  for (size_t i = 0; i < done_.size(); ++i) done_[i] = end_of(static_cast<int64_t>(i)) <= prefix ? 1 : 0;
  if (ftruncate(state_.get(), 0) != 0) fail_on(state_path_, "cut");
  if (ftruncate(data_.get(), file.size) != 0) fail_on(data_path_, "resize");
  std::string bits;
  for (const uint8_t d : done_) bits += d != 0 ? '1' : '0';
  write_all(state_, state_path_, 0, head + bits);
}

int64_t PartialFile::done_bytes() const {
  int64_t bytes = 0;
  for (int64_t c = 0; c < chunks(); ++c)
    if (is_done(c)) bytes += end_of(c) - begin_of(c);
  return bytes;
}

void PartialFile::write(int64_t at, std::string_view bytes) { write_all(data_, data_path_, at, bytes); }

void PartialFile::set_done(int64_t chunk) {
  done_[static_cast<size_t>(chunk)] = 1;
  write_all(state_, state_path_, static_cast<int64_t>(head_of(file_).size()) + chunk, "1");
}

void PartialFile::start_over() {
  std::fill(done_.begin(), done_.end(), 0);
  write_all(state_, state_path_, static_cast<int64_t>(head_of(file_).size()), std::string(done_.size(), '0'));
  if (ftruncate(data_.get(), 0) != 0 || ftruncate(data_.get(), file_.size) != 0) fail_on(data_path_, "resize");
}

std::string PartialFile::checksum() const { return checksum_of_file(data_.get(), file_.size, file_.kind); }

void PartialFile::publish() {
  if (fsync(data_.get()) != 0) fail_on(data_path_, "flush");
  if (rename(data_path_.c_str(), blob_path_.c_str()) != 0) fail_on(data_path_, "rename");
  unlink(state_path_.c_str());
}

void PartialFile::discard() {
  unlink(data_path_.c_str());
  unlink(state_path_.c_str());
}

}  // namespace mettle::hub
