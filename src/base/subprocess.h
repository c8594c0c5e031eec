// A child process with a deadline and output limits. Never goes through a shell.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mettle {

struct SubprocessOptions {
  std::vector<std::string> argv;                         // argv[0] is the path of the program
  std::vector<std::pair<std::string, std::string>> env;  // set on top of the parent's environment
  std::string input;                                     // written to standard input, then closed
  std::chrono::milliseconds deadline{60'000};            // of the whole run
  std::chrono::milliseconds silence{0};                  // 0: none; else killed after this long without a line
  size_t output_limit = size_t{16} << 20;                // bytes of standard output before it is killed
  std::function<void(std::string_view line)> on_line;    // each full line of standard output, without its newline
};

enum class SubprocessEnd { kExited, kSignaled, kDeadline, kSilence, kOutputLimit };

struct SubprocessResult {
  SubprocessEnd end = SubprocessEnd::kExited;
  int exit_code = 0;  // kExited
  int signal = 0;     // kSignaled
  std::string out;    // standard output, only when on_line is empty
  std::string err;    // last 16 KiB of standard error
};

// Runs it to its end. The child is in its own process group, gets SIGKILL when the parent dies, and is reaped with its
// group on every path out of here. Fails with kDevice when it cannot be started.
SubprocessResult run_subprocess(const SubprocessOptions& options);

}  // namespace mettle
