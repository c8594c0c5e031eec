#include "prove/child_pipe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace mettle {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

ChildPipe::ChildPipe() : fd_(fcntl(1, F_DUPFD_CLOEXEC, 3)) {
  if (fd_ < 0 || dup2(2, 1) < 0) fail(Code::kDevice, "child: cannot set up its output");
}

void ChildPipe::send(const json& event) {
  std::string line = event.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  for (size_t at = 0; at < line.size();) {
    const ssize_t n = write(fd_, line.data() + at, line.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(1);  // the parent is gone
    at += static_cast<size_t>(n);
  }
  last_ = Clock::now();
}

void ChildPipe::alive() {
  if (Clock::now() - last_ > std::chrono::milliseconds(200)) send({{"alive", true}});
}

void limit_child(bool gpu) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  if (gpu) return;  // the driver maps far more address space than there is memory
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto memory = static_cast<rlim_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<rlim_t>(sysconf(_SC_PAGE_SIZE));
  const rlim_t most = std::max<rlim_t>(memory / 2, rlim_t{4} << 30);
  rlimit space{};
  getrlimit(RLIMIT_AS, &space);
  space.rlim_cur = std::min(most, space.rlim_max);
  setrlimit(RLIMIT_AS, &space);
#endif
}

json next_job(const char* program) {
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.empty()) continue;
    json parsed = json::parse(line, nullptr, false);
    if (parsed.is_discarded() || !parsed.is_object())
      fail(Code::kInvalidRequest, fmt::format("{}: a line of standard input is no JSON object: {:.80}", program, line));
    return parsed;
  }
  return {};
}

}  // namespace mettle
