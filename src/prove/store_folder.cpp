#include "prove/store_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

namespace mettle {
namespace {

// "69e643baeef67ddf.json.4711.0.tmp"
bool is_leftover_name(std::string_view name) {
  return name.ends_with(".tmp") && name.size() > 21 && is_store_name(name.substr(0, 21));
}

}  // namespace

uint64_t checksum(std::string_view bytes) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : bytes) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return h;
}

bool is_store_name(std::string_view name) {
  constexpr size_t kDigits = 16;
  return name.size() == kDigits + 5 && name.ends_with(".json") &&
         name.substr(0, kDigits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

StoreTurn::StoreTurn(const std::filesystem::path& folder, std::chrono::milliseconds patience)
    : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  const auto begin = std::chrono::steady_clock::now();
  while (fd_ >= 0 && !held_) {
    held_ = flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (held_ || (errno != EWOULDBLOCK && errno != EINTR)) break;
    if (std::chrono::steady_clock::now() - begin > patience) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

StoreTurn::~StoreTurn() {
  if (fd_ >= 0) close(fd_);
}

void sweep_leftovers(const std::filesystem::path& folder) {
  std::error_code ec;
  std::vector<std::filesystem::path> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ec))
    if (is_leftover_name(entry.path().filename().string())) left.push_back(entry.path());
  for (const auto& path : left) std::filesystem::remove(path, ec);
}

}  // namespace mettle
