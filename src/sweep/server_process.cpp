#include "sweep/server_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "diagnose/pattern.h"
#include "sweep/cgroup.h"
#include "sweep/log_file.h"

extern char** environ;

namespace mettle::sweep {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMostLine = 4096;  // of a line that is looked at
constexpr double kKillSeconds = 10;
constexpr size_t kMostRest = size_t{64} << 20;  // read after the end, should something still write

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<std::string> environment(const Pairs& extra) {
  std::vector<std::string> env;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry = *e;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (std::none_of(extra.begin(), extra.end(), [&](const auto& pair) { return pair.first == name; }))
      env.emplace_back(entry);
  }
  for (const auto& [name, value] : extra) env.push_back(name + "=" + value);
  return env;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// Only async-signal-safe calls: other threads of this process may hold any lock.
[[noreturn]] void become(char* const* words, char* const* env, const char* folder, const char* procs, int output,
                         int failed, pid_t parent) {
  const auto give_up = [&](int what) {
    const int told[2] = {what, errno};
    [[maybe_unused]] const ssize_t n = write(failed, told, sizeof told);
    _exit(127);
  };
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  if (procs[0] != '\0') {
    const int fd = open(procs, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
      [[maybe_unused]] const ssize_t n = write(fd, "0", 1);
      close(fd);
    }
  }
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0) dup2(null, 0);
  dup2(output, 1);
  dup2(output, 2);
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (chdir(folder) != 0) give_up(1);
  execvpe(words[0], words, env);
  give_up(2);
  _exit(127);
}

}  // namespace

std::string Exit::text() const {
  if (signal != 0) return fmt::format("signal {} ({})", signal, strsignal(signal));
  return fmt::format("exit code {}", code);
}

std::string group_name(const Family& family) { return "mettle-sweep-" + family.mark(); }

struct ServerProcess::State {
  State(const Launch& launch, Family& family)
      : family(family), group(group_name(family)), log(launch.log, launch.log_bytes) {
    if (!launch.ready_pattern.empty()) pattern = diagnose::Pattern(launch.ready_pattern);
    has_pattern = !launch.ready_pattern.empty();
  }

  // The pump: the pipe into the log, its lines past the pattern. Ends with the pipe, or when told to.
  void pump() {
    std::vector<char> chunk(size_t{64} << 10);
    for (size_t rest = 0; rest < kMostRest;) {
      pollfd fd = {pipe_end, POLLIN, 0};
      const int ready = poll(&fd, 1, 50);
      if (ready < 0 && errno != EINTR) return;
      if (ready > 0) {
        const ssize_t n = read(pipe_end, chunk.data(), chunk.size());
        if (n == 0) return;
        if (n > 0) {
          take({chunk.data(), static_cast<size_t>(n)});
          if (closing) rest += static_cast<size_t>(n);
          continue;
        }
        if (errno != EINTR && errno != EAGAIN) return;
      }
      if (closing) return;
    }
  }

  void take(std::string_view bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    log.write(bytes);
    last_byte = Clock::now();
    while (!bytes.empty()) {
      const size_t end = bytes.find('\n');
      const std::string_view piece = bytes.substr(0, end);
      if (line.size() < kMostLine) line.append(piece.substr(0, kMostLine - line.size()));
      if (end == std::string_view::npos) break;
      whole_line();
      bytes.remove_prefix(end + 1);
    }
  }

  void whole_line() {
    if (has_pattern && !ready) ready = pattern.search(line);
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
    line.clear();
  }

  Family& family;
  Cgroup group;
  LogFile log;
  diagnose::Pattern pattern;
  bool has_pattern = false;
  std::atomic<bool> ready{false}, closing{false};
  mutable std::mutex mutex;  // log, line, last, last_byte
  std::string line, last;
  Clock::time_point last_byte = Clock::now();
  int pipe_end = -1;
  std::thread pumping;
  ProcessId leader;
  std::optional<Exit> exit;
};

ServerProcess::ServerProcess(const Launch& launch, Family& family) : state_(std::make_unique<State>(launch, family)) {
  State& s = *state_;
  Pairs extra = launch.env;
  extra.emplace_back(Family::kVariable, family.mark());
  std::vector<std::string> words = launch.words, env = environment(extra);
  CHECK(!words.empty(), "no program");
  const std::vector<char*> words_p = pointers(words), env_p = pointers(env);
  const std::string procs = s.group.procs();
  int output[2], failed[2];
  if (pipe2(output, O_CLOEXEC) != 0) fail(Code::kDevice, fmt::format("pipe: {}", std::strerror(errno)));
  if (pipe2(failed, O_CLOEXEC) != 0) {
    close(output[0]);
    close(output[1]);
    fail(Code::kDevice, fmt::format("pipe: {}", std::strerror(errno)));
  }
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0)
    become(words_p.data(), env_p.data(), launch.folder.c_str(), procs.c_str(), output[1], failed[1], parent);
  const int fork_error = errno;
  close(output[1]);
  close(failed[1]);
  int told[2] = {0, fork_error};
  ssize_t got = 0;
  if (pid > 0)
    while ((got = read(failed[0], told, sizeof told)) < 0 && errno == EINTR) {
    }
  close(failed[0]);
  if (pid < 0 || got == sizeof told) {
    close(output[0]);
    if (pid > 0) waitpid(pid, nullptr, 0);
    fail(Code::kDevice, fmt::format("{}: cannot be started{}: {}", words[0],
                                    told[0] == 1 ? fmt::format(" in {}", launch.folder) : "", std::strerror(told[1])));
  }
  s.leader.pid = pid;
  family.expect(pid);
  if (const auto process = read_process(pid)) s.leader = process->id;
  s.pipe_end = output[0];
  fcntl(s.pipe_end, F_SETFL, O_NONBLOCK);
  s.last_byte = Clock::now();
  s.pumping = std::thread([&s] { s.pump(); });
}

ServerProcess::~ServerProcess() {
  State& s = *state_;
  s.group.kill();
  s.family.end_all(kKillSeconds, s.group.members());
  if (!s.exit) waitpid(s.leader.pid, nullptr, WNOHANG);
  s.family.forget(s.leader.pid);
  finish_log();
}

void ServerProcess::finish_log() {
  State& s = *state_;
  if (!s.pumping.joinable()) return;
  s.closing = true;
  s.pumping.join();
  close(s.pipe_end);
  if (!s.line.empty()) s.whole_line();
  s.log.finish();
}

std::optional<Exit> ServerProcess::ended() {
  State& s = *state_;
  if (s.exit) return s.exit;
  int status = 0;
  if (waitpid(s.leader.pid, &status, WNOHANG) == s.leader.pid)
    s.exit = WIFSIGNALED(status) ? Exit{0, WTERMSIG(status)} : Exit{WEXITSTATUS(status), 0};
  return s.exit;
}

bool ServerProcess::saw_ready() const { return state_->ready; }

double ServerProcess::silent_seconds() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return since(state_->last_byte);
}

std::string ServerProcess::last_line() const {
  std::string text;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    text = state_->last.empty() ? state_->line : state_->last;
  }
  std::erase_if(text, [](unsigned char c) { return c < 32 || c >= 127; });
  if (text.size() > 200) text = text.substr(0, 200) + " ...";
  return text;
}

uint64_t ServerProcess::log_bytes() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->log.bytes();
}
uint64_t ServerProcess::log_left_out() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->log.left_out();
}
bool ServerProcess::log_damaged() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->log.damaged();
}
std::vector<Process> ServerProcess::members() const { return state_->family.members(state_->group.members()); }

ServerProcess::Stopped ServerProcess::stop(double seconds, const std::atomic<bool>* hurry,
                                           const std::function<void()>& look) {
  State& s = *state_;
  Stopped result;
  const auto start = Clock::now();
  const bool alive = !ended();
  if (alive) send(s.leader, SIGTERM);
  bool seen_end = !alive;
  // The program first, then what it started: children get the rest of the time to notice that it is gone.
  for (;;) {
    if (!seen_end && ended()) {
      seen_end = true;
      result.seconds = since(start);
    }
    if (seen_end && members().empty()) return result;
    if (since(start) >= seconds || (hurry != nullptr && *hurry)) break;
    usleep(50'000);
  }
  result.forced = !seen_end;
  for (const Process& process : members())
    if (seen_end && process.id.pid != s.leader.pid) {
      const std::string line = command_line(process.id.pid);
      result.left.push_back(fmt::format("process {} ({})", process.id.pid, line.empty() ? process.name : line));
    }
  if (!result.left.empty()) look();
  s.group.kill();
  for (const Process& process : s.family.end_all(kKillSeconds, s.group.members()))
    result.immortal.push_back(fmt::format("process {} ({})", process.id.pid, process.name));
  if (!seen_end) result.seconds = since(start);
  const auto last = Clock::now();
  while (!ended() && since(last) < kKillSeconds) usleep(5'000);
  return result;
}

}  // namespace mettle::sweep
