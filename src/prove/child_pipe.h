// What the loops of a child share: events as JSON lines on the pipe that was standard output, limits, jobs as JSON
// lines on standard input.
#pragma once
#include <chrono>
#include <nlohmann/json_fwd.hpp>

namespace mettle {

// Standard output belongs to the protocol; what a backend prints goes to standard error instead.
class ChildPipe {
 public:
  ChildPipe();
  void send(const nlohmann::json& event);
  void alive();  // a sign of life when nothing was sent for a while

 private:
  int fd_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// A crash leaves no core file; a backend that allocates without end fails instead of taking the machine along.
void limit_child(bool gpu);

// Null at the end of the input; fails with kInvalidRequest, naming `program`, at a line that is no JSON object.
nlohmann::json next_job(const char* program);

}  // namespace mettle
