#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <string>

namespace mettle::log {
namespace {
std::atomic<Level> g_level{Level::kInfo};
}

void set_level(Level level) { g_level = level; }
Level level() { return g_level.load(std::memory_order_relaxed); }

void write(Level level, std::string_view line) {
  constexpr std::string_view kTag = "DIWE";
  std::string out;
  out.reserve(line.size() + 3);
  out += kTag[static_cast<size_t>(level)];
  out += ' ';
  out += line;
  out += '\n';
  // One write per line, so that lines of several threads and processes do not interleave.
  const char* p = out.data();
  size_t left = out.size();
  while (left > 0) {
    const ssize_t n = ::write(STDERR_FILENO, p, left);
    if (n <= 0) return;  // nobody reads: a log line is not worth failing for
    p += n;
    left -= static_cast<size_t>(n);
  }
}

}  // namespace mettle::log
