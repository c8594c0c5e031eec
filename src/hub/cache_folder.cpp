#include "hub/cache_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/file_map.h"
#include "base/hub_cache.h"

namespace mettle::hub {
namespace fs = std::filesystem;
namespace {

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(Code::kDevice, fmt::format("{}: cannot make the folder: {}", path.string(), error.message()));
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

CacheFolder::CacheFolder(const fs::path& cache, const std::string& repository)
    : folder_(cache / hub_folder_name(repository)), locks_(cache / ".locks" / hub_folder_name(repository)) {
  for (const fs::path& path : {folder_ / "blobs", folder_ / "refs", folder_ / "snapshots", locks_}) make_folders(path);
}

bool CacheFolder::has_blob(const RemoteFile& file) const {
  struct stat info;
  return ::stat(blob(file.sum).c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_size == file.size;
}

Descriptor CacheFolder::try_lock(const std::string& sum) const {
  const fs::path path = locks_ / (sum + ".lock");
  Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664));
  if (file.get() < 0) fail(Code::kDevice, fmt::format("{}: cannot open: {}", path.string(), std::strerror(errno)));
  if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK && errno != EINTR)
    fail(Code::kDevice, fmt::format("{}: cannot lock: {}", path.string(), std::strerror(errno)));
  return Descriptor();
}

void CacheFolder::link(const std::string& commit, const RemoteFile& file) const {
  const fs::path at = snapshot(commit) / file.name;
  make_folders(at.parent_path());
  const fs::path target = blob(file.sum).lexically_relative(at.parent_path());
  std::error_code error;
  if (fs::is_symlink(at, error) && fs::read_symlink(at, error) == target) return;
  // Made beside it and renamed: there is no moment without the file.
  const fs::path made = at.parent_path() / fmt::format(".{}.{}.link", file.sum.substr(0, 16), getpid());
  fs::remove(made, error);
  fs::create_symlink(target, made, error);
  if (!error) fs::rename(made, at, error);
  if (error) {
    const std::string why = error.message();
    fs::remove(made, error);
    fail(Code::kDevice, fmt::format("{}: cannot make the link to {}: {}", at.string(), target.string(), why));
  }
}

void CacheFolder::write_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit) return;
  const fs::path path = folder_ / "refs" / revision;
  make_folders(path.parent_path());
  write_file_atomically(path.string(), commit);
}

int64_t CacheFolder::free_bytes() const {
  struct statvfs info;
  if (statvfs(folder_.c_str(), &info) != 0)
    fail(Code::kDevice, fmt::format("{}: cannot ask for its free space: {}", folder_.string(), std::strerror(errno)));
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace mettle::hub
