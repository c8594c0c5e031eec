// A server under test: in a session of its own, its output followed and kept, ended with everything it left behind.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sweep/plan.h"
#include "sweep/processes.h"

namespace mettle::sweep {

struct Launch {
  std::vector<std::string> words;  // program and arguments; a program without a slash is looked for in PATH
  Pairs env;                       // on top of this process's environment
  std::string folder;              // where it runs
  std::string log;                 // file of its output
  uint64_t log_bytes = 0;
  std::string ready_pattern;  // regular expression of a line, or empty
};

struct Exit {
  int code = 0, signal = 0;  // signal 0: it exited with code
  std::string text() const;  // "exit code 1", "signal 9 (Killed)"
};

// Of the control group that all servers of a sweep run in, one after the other.
std::string group_name(const Family& family);

class ServerProcess {
 public:
  // Fails with kDevice when the program cannot be started. `family` must outlive it.
  ServerProcess(const Launch& launch, Family& family);
  ~ServerProcess();  // ends what is left, at once
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  std::optional<Exit> ended();    // of the program itself
  bool saw_ready() const;         // a line matched ready_pattern
  double silent_seconds() const;  // since the last byte of output, or since the start
  std::string last_line() const;  // printable, cut
  uint64_t log_bytes() const;
  uint64_t log_left_out() const;
  bool log_damaged() const;
  std::vector<Process> members() const;  // it and everything that came from it

  struct Stopped {
    bool forced = false;                // the program itself did not end in time
    double seconds = 0;                 // until it ended
    std::vector<std::string> left;      // processes that outlived it; ended now
    std::vector<std::string> immortal;  // could not be ended
  };
  // SIGTERM, `seconds` later SIGKILL, and to whatever is still there. *hurry set: no waiting. `look` is called when the
  // program ended and left others, before they are ended.
  Stopped stop(double seconds, const std::atomic<bool>* hurry, const std::function<void()>& look);
  // Reads what is still in the pipe and closes the log. After stop().
  void finish_log();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mettle::sweep
