#include "base/subprocess.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

extern char** environ;

namespace mettle {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kErrorTail = size_t{16} << 10;

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) fail(Code::kDevice, fmt::format("pipe: {}", std::strerror(errno)));
    read = fds[0];
    write = fds[1];
  }
  ~Pipe() {
    shut(read);
    shut(write);
  }
  static void shut(int& fd) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
};

std::vector<std::string> environment(const std::vector<std::pair<std::string, std::string>>& extra) {
  std::vector<std::string> env;
  for (char** e = environ; *e != nullptr; ++e) {
    const std::string_view entry = *e;
    const bool replaced = std::any_of(extra.begin(), extra.end(), [&](const auto& kv) {
      return entry.size() > kv.first.size() && entry.starts_with(kv.first) && entry[kv.first.size()] == '=';
    });
    if (!replaced) env.emplace_back(entry);
  }
  for (const auto& [k, v] : extra) env.push_back(k + "=" + v);
  return env;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// write() to a child that may be gone: EPIPE instead of the signal. MSG_NOSIGNAL exists for sockets only, and the
// process's own SIGPIPE disposition belongs to its user (`mettle run | head` ends by it).
ssize_t write_without_sigpipe(int fd, std::string_view data) {
  sigset_t pipe_signal, old, pending;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  sigpending(&pending);
  const bool was_pending = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &old);
  const ssize_t n = write(fd, data.data(), data.size());
  const int error = errno;
  if (n < 0 && error == EPIPE && !was_pending) {
    const timespec now = {};
    while (sigtimedwait(&pipe_signal, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  errno = error;
  return n;
}

// The child's group ends and the child is reaped, also when the caller's on_line throws.
struct Reaper {
  pid_t pid;
  bool reaped = false;
  ~Reaper() {
    if (reaped) return;
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
};

}  // namespace

SubprocessResult run_subprocess(const SubprocessOptions& options) {
  CHECK(!options.argv.empty(), "no program");
  std::vector<std::string> argv = options.argv, env = environment(options.env);
  const std::vector<char*> argv_p = pointers(argv), env_p = pointers(env);
  Pipe in, out, err, started;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) fail(Code::kDevice, fmt::format("fork: {}", std::strerror(errno)));
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(in.read, 0);
    dup2(out.write, 1);
    dup2(err.write, 2);
    signal(SIGPIPE, SIG_DFL);
    execve(argv_p[0], argv_p.data(), env_p.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t n = write(started.write, &error, sizeof error);
    _exit(127);
  }
  setpgid(pid, pid);
  Reaper reaper{pid};
  Pipe::shut(in.read);
  Pipe::shut(out.write);
  Pipe::shut(err.write);
  Pipe::shut(started.write);
  int start_error = 0;
  if (read(started.read, &start_error, sizeof start_error) == sizeof start_error) {
    fail(Code::kDevice, fmt::format("{}: cannot start: {}", argv[0], std::strerror(start_error)));
  }
  for (const int fd : {in.write, out.read, err.read}) fcntl(fd, F_SETFL, O_NONBLOCK);

  SubprocessResult result;
  std::string line;
  size_t written = 0, received = 0;
  const auto begin = Clock::now();
  auto last_line = begin;
  bool killed = false;
  const auto kill_group = [&](SubprocessEnd why) {
    result.end = why;
    killed = true;
    kill(-pid, SIGKILL);
  };
  const auto take = [&](std::string_view bytes) {
    received += bytes.size();
    if (!options.on_line) {
      result.out += bytes;
      return;
    }
    for (const char c : bytes) {
      if (c != '\n') {
        line += c;
        continue;
      }
      options.on_line(line);
      line.clear();
      last_line = Clock::now();
    }
  };
  std::vector<char> chunk(size_t{64} << 10);
  while (!killed && (out.read >= 0 || err.read >= 0)) {
    if (in.write >= 0 && written == options.input.size()) Pipe::shut(in.write);
    pollfd fds[3] = {{in.write, POLLOUT, 0}, {out.read, POLLIN, 0}, {err.read, POLLIN, 0}};
    auto wake = begin + options.deadline;
    if (options.silence.count() > 0) wake = std::min(wake, last_line + options.silence);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(wake - Clock::now()).count();
    const int ready = poll(fds, 3, static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1'000)));
    if (ready > 0) {
      if (fds[0].revents != 0) {
        const ssize_t n = write_without_sigpipe(in.write, std::string_view(options.input).substr(written));
        if (n > 0) written += static_cast<size_t>(n);
        if (n < 0 && errno != EAGAIN && errno != EINTR) Pipe::shut(in.write);
      }
      if (fds[1].revents != 0) {
        const ssize_t n = read(out.read, chunk.data(), chunk.size());
        if (n > 0) take({chunk.data(), static_cast<size_t>(n)});
        if (n == 0) Pipe::shut(out.read);
      }
      if (fds[2].revents != 0) {
        const ssize_t n = read(err.read, chunk.data(), chunk.size());
        if (n > 0) result.err.append(chunk.data(), static_cast<size_t>(n));
        if (n == 0) Pipe::shut(err.read);
        if (result.err.size() > 4 * kErrorTail) result.err.erase(0, result.err.size() - kErrorTail);
      }
    }
    const auto now = Clock::now();
    if (received > options.output_limit)
      kill_group(SubprocessEnd::kOutputLimit);
    else if (now - begin >= options.deadline)
      kill_group(SubprocessEnd::kDeadline);
    else if (options.silence.count() > 0 && now - last_line >= options.silence)
      kill_group(SubprocessEnd::kSilence);
    // A grandchild may hold the pipes open after the child is gone.
    if (!killed) {
      siginfo_t info = {};
      if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid &&
          ready <= 0)
        break;
    }
  }
  int status = 0;
  // The child closed its outputs but may still run: it has what is left of the deadline.
  while (!killed && waitpid(pid, &status, WNOHANG) == 0) {
    if (Clock::now() - begin >= options.deadline) {
      kill_group(SubprocessEnd::kDeadline);
      break;
    }
    poll(nullptr, 0, 1);
  }
  if (killed) waitpid(pid, &status, 0);
  kill(-pid, SIGKILL);
  reaper.reaped = true;
  if (!killed) {
    result.end = WIFSIGNALED(status) ? SubprocessEnd::kSignaled : SubprocessEnd::kExited;
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (options.on_line && !line.empty()) options.on_line(line);
  }
  if (result.err.size() > kErrorTail) result.err.erase(0, result.err.size() - kErrorTail);
  return result;
}

}  // namespace mettle
