#include "base/file_map.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/error.h"

namespace mettle {
namespace {

// Read from the signal handler, so plain atomics and no allocation. 512 shards are more than any checkpoint has.
struct Slot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> torn{false};
};
std::array<Slot, 512> g_slots;
std::once_flag g_once;
struct sigaction g_previous;

void on_sigbus(int signal, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Slot& s : g_slots) {
    const uintptr_t begin = s.begin.load(), end = s.end.load();
    if (begin == 0 || at < begin || at >= end) continue;
    s.torn = true;
    const uintptr_t page = at & ~uintptr_t{4095};
    // From here to the end of the map: zeros, so that the reader comes back and finds `torn`.
    void* r =
        mmap(reinterpret_cast<void*>(page), end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (r != MAP_FAILED) return;
  }
  if ((g_previous.sa_flags & SA_SIGINFO) != 0 && g_previous.sa_sigaction != nullptr) {
    g_previous.sa_sigaction(signal, info, context);
    return;
  }
  ::signal(SIGBUS, SIG_DFL);
  raise(SIGBUS);
}

void install_handler() {
  struct sigaction action = {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGBUS, &action, &g_previous);
}

struct Fd {
  int fd;
  ~Fd() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

FileMap::FileMap(const std::string& path) : path_(path) {
  std::call_once(g_once, install_handler);
  // Without O_NONBLOCK the open of a pipe waits for a writer. Files do not know it.
  const Fd file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail(Code::kBadModel, fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  struct stat st = {};
  if (fstat(file.fd, &st) != 0) fail(Code::kBadModel, fmt::format("{}: cannot stat: {}", path, std::strerror(errno)));
  if (!S_ISREG(st.st_mode)) fail(Code::kBadModel, fmt::format("{}: must be a regular file", path));
  size_ = static_cast<size_t>(st.st_size);
  if (size_ == 0) return;
  void* p = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (p == MAP_FAILED)
    fail(Code::kBadModel, fmt::format("{}: cannot map {} bytes: {}", path, size_, std::strerror(errno)));
  data_ = static_cast<uint8_t*>(p);
  for (int i = 0; i < static_cast<int>(g_slots.size()); ++i) {
    uintptr_t free = 0;
    Slot& s = g_slots[static_cast<size_t>(i)];
    if (!s.begin.compare_exchange_strong(free, reinterpret_cast<uintptr_t>(p))) continue;
    s.torn = false;
    s.end = reinterpret_cast<uintptr_t>(p) + size_;
    slot_ = i;
    return;
  }
  munmap(p, size_);
  fail(Code::kBadModel, fmt::format("{}: more than {} files mapped at once", path, g_slots.size()));
}

FileMap::~FileMap() {
  if (slot_ >= 0) {
    g_slots[static_cast<size_t>(slot_)].end = 0;
    g_slots[static_cast<size_t>(slot_)].begin = 0;
  }
  if (data_ != nullptr) munmap(data_, size_);
}

void FileMap::check_intact() const {
  if (slot_ >= 0 && g_slots[static_cast<size_t>(slot_)].torn)
    fail(Code::kBadModel, fmt::format("{}: shrank while it was read (was {} bytes when opened)", path_, size_));
}

void FileMap::done_with(size_t offset, size_t bytes) const {
  const size_t begin = (offset + 4095) & ~size_t{4095};
  const size_t end = (offset + bytes) & ~size_t{4095};
  if (data_ != nullptr && end > begin && end <= size_) madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

std::string read_file(const std::string& path, size_t limit) {
  const FileMap map(path);
  if (map.size() > limit)
    fail(Code::kBadModel, fmt::format("{}: must be at most {} bytes, is {}", path, limit, map.size()));
  std::string text(reinterpret_cast<const char*>(map.data()), map.size());
  map.check_intact();
  return text;
}

void write_file_atomically(const std::string& path, const std::string& content) {
  constexpr int kNames = 100;  // one may be left of a killed process that had this number
  static std::atomic<unsigned> counter{0};
  std::string temporary;
  const auto give_up = [&](const char* what) {
    const int error = errno;
    if (!temporary.empty()) unlink(temporary.c_str());
    fail(Code::kDevice, fmt::format("{}: cannot {}: {}", path, what, std::strerror(error)));
  };
  // Tries names that no file has yet.
  const auto by_new_name = [&](const auto& make) {
    for (int i = 0; i < kNames; ++i) {
      temporary = fmt::format("{}.{}.{}.tmp", path, getpid(), counter++);
      if (make()) return true;
      if (errno != EEXIST) break;
    }
    temporary.clear();
    return false;
  };
  // Without a name until it is whole, where the file system can: who is killed leaves no half file.
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  Fd file{open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644)};
  const bool unnamed = file.fd >= 0;
  const auto create = [&] {
    return by_new_name([&] {
      file.fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
      return file.fd >= 0;
    });
  };
  if (!unnamed && !create()) give_up("create");
  size_t at = 0;
  while (at < content.size()) {
    const ssize_t n = write(file.fd, content.data() + at, content.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) give_up("write");
    at += static_cast<size_t>(n);
  }
  if (fsync(file.fd) != 0) give_up("flush");
  const std::string self = fmt::format("/proc/self/fd/{}", file.fd);
  const auto link = [&] { return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, temporary.c_str(), AT_SYMLINK_FOLLOW) == 0; };
  if (unnamed && !by_new_name(link)) give_up("create");
  if (rename(temporary.c_str(), path.c_str()) != 0) give_up("rename");
}

}  // namespace mettle
