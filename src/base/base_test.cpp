#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_map.h"
#include "base/shared_cores.h"
#include "base/subprocess.h"
#include "base/temporary_folder.h"
#include "base/terminal.h"
#include "base/thread_team.h"

namespace mettle {
namespace {

SubprocessResult shell(const std::string& script, SubprocessOptions options = {}) {
  options.argv = {"/bin/sh", "-c", script};
  return run_subprocess(options);
}

TEST(FileMap, ReadsAFileAndRefusesWhatIsNone) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "hello");
  EXPECT_EQ(read_file(path, 5), "hello");
  EXPECT_THROW(read_file(path, 4), Error);
  EXPECT_THROW(FileMap("/no/such/file"), Error);
  EXPECT_THROW(FileMap{folder.path()}, Error);
  EXPECT_EQ(read_file(folder.write("empty", ""), 10), "");
}

TEST(FileMap, AFileThatShrinksIsAnErrorNotACrash) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", std::string(3 * 4096, 'x'));
  const FileMap map(path);
  ASSERT_EQ(map.data()[0], 'x');
  ASSERT_EQ(truncate(path.c_str(), 4096), 0);
  EXPECT_EQ(map.data()[2 * 4096], 0);
  try {
    map.check_intact();
    FAIL() << "a torn map passed";
  } catch (const Error& e) {
    EXPECT_NE(e.message.find("shrank while it was read (was 12288 bytes"), std::string::npos) << e.message;
  }
}

TEST(FileMap, WritesAtomicallyAndLeavesNothingBehindOnFailure) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "old");
  write_file_atomically(path, "new");
  EXPECT_EQ(read_file(path, 10), "new");
  EXPECT_THROW(write_file_atomically("/proc/none/file", "x"), Error);
  folder.write("folder/inside", "");
  EXPECT_THROW(write_file_atomically(folder / "folder", "x"), Error);  // fails at its last step
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"file", "folder"}));
}

TEST(ThreadTeam, EveryMemberRunsOnceAndErrorsComeBack) {
  for (const int members : {1, 2, 5}) {
    ThreadTeam team(members);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(members));
      team.run([&](int member) { ++seen[static_cast<size_t>(member)]; });
      for (auto& s : seen) ASSERT_EQ(s.load(), 1);
    }
    EXPECT_THROW(team.run([&](int member) {
      if (member == members - 1) fail(Code::kInternal, "boom");
    }),
                 Error);
    std::atomic<int> after{0};
    team.run([&](int) { ++after; });
    EXPECT_EQ(after.load(), members);
  }
}

TEST(ThreadTeam, OnSharedCoresNobodyIsLeftAsleep) {
  // In a process of its own: cores stay shared. Every member sleeps sooner or later, as caller and as worker.
  const auto work = [] {
    share_cores();
    ThreadTeam team(4);
    std::atomic<int> calls{0};
    for (int round = 0; round < 2000; ++round)
      team.run([&](int member) {
        for (int i = 0; i < 50 * member; ++i) sched_yield();
        ++calls;
      });
    std::exit(calls == 8000 ? 0 : 1);
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(work(), testing::ExitedWithCode(0), "");
}

TEST(ThreadTeam, SharesCoverEverythingOnce) {
  for (const int64_t count : {0, 1, 7, 64}) {
    int64_t at = 0;
    for (int m = 0; m < 5; ++m) {
      const Span s = share_of(count, m, 5);
      EXPECT_EQ(s.begin, at);
      at = s.end;
    }
    EXPECT_EQ(at, count);
  }
}

TEST(Subprocess, ReturnsOutputExitCodeAndSignal) {
  const SubprocessResult r = shell("cat; echo warned >&2; exit 3", {.input = "in"});
  EXPECT_EQ(r.end, SubprocessEnd::kExited);
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_EQ(r.out, "in");
  EXPECT_EQ(r.err, "warned\n");
  const SubprocessResult s = shell("kill -SEGV $$");
  EXPECT_EQ(s.end, SubprocessEnd::kSignaled);
  EXPECT_EQ(s.signal, SIGSEGV);
  EXPECT_EQ(shell("exit 0", {.env = {{"X", "1"}}}).exit_code, 0);
  EXPECT_EQ(shell("test \"$X\" = 1", {.env = {{"X", "1"}}}).exit_code, 0);
}

// 1 MiB is more than a pipe holds: the write is under way when the reader goes.
TEST(Subprocess, ChildThatReadsNothingDoesNotEndTheParent) {
  const SubprocessResult r = run_subprocess({.argv = {"/bin/false"}, .input = std::string(size_t{1} << 20, 'x')});
  EXPECT_EQ(r.end, SubprocessEnd::kExited);
  EXPECT_EQ(r.exit_code, 1);
}

TEST(Subprocess, EndsWhatDoesNotEnd) {
  EXPECT_EQ(shell("sleep 100", {.deadline = std::chrono::milliseconds(100)}).end, SubprocessEnd::kDeadline);
  EXPECT_EQ(shell("echo a; sleep 100", {.silence = std::chrono::milliseconds(200)}).end, SubprocessEnd::kSilence);
  EXPECT_EQ(shell("yes", {.output_limit = 1 << 16}).end, SubprocessEnd::kOutputLimit);
  EXPECT_THROW(run_subprocess({.argv = {"/no/such/program"}}), Error);
}

// The child reads nothing and writes nothing, so no pipe tells it. It holds the writing end of `alive` until it ends.
TEST(Subprocess, AMuteChildEndsWithItsParent) {
  int started[2], alive[2];
  ASSERT_EQ(pipe2(started, O_CLOEXEC), 0);
  ASSERT_EQ(pipe(alive), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    shell("echo $$; exec sleep 1000", {.on_line = [&](std::string_view pid) {
            if (write(started[1], pid.data(), pid.size()) < 0) _exit(1);
          }});
    _exit(0);
  }
  close(alive[1]);
  char child[16] = {};
  ASSERT_GT(read(started[0], child, sizeof child - 1), 0);
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  pollfd end{alive[0], POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 20'000), 1) << "the child outlives its parent";
  if (end.revents == 0) kill(std::atoi(child), SIGKILL);
  for (const int fd : {started[0], started[1], alive[0]}) close(fd);
}

TEST(Subprocess, GivesLinesAsTheyCome) {
  std::vector<std::string> lines;
  shell("printf 'a\\nb\\nc'", {.on_line = [&](std::string_view l) { lines.emplace_back(l); }});
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "b", "c"}));
}

TEST(Subprocess, AListenerThatThrowsLeavesNoChild) {
  pid_t child = 0;
  const auto listen = [&](std::string_view pid) {
    child = std::stoi(std::string(pid));
    fail(Code::kInternal, "boom");
  };
  EXPECT_THROW(shell("echo $$; exec sleep 1000", {.on_line = listen}), Error);
  ASSERT_GT(child, 0);
  EXPECT_EQ(kill(child, 0), -1) << "the child runs on, or nobody reaped it";
}

// What a bar of so many parts writes to a terminal of so many columns, drawing by drawing.
std::vector<std::string> drawn(unsigned short columns, const std::string& what, const std::string& detail) {
  winsize size{.ws_row = 24, .ws_col = columns};
  int ours = -1, theirs = -1;
  EXPECT_EQ(openpty(&ours, &theirs, nullptr, nullptr, &size), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ours);
    dup2(theirs, STDERR_FILENO);
    close(theirs);
    setenv("TERM", "xterm", 1);
    for (const uint64_t done : {100, 50}) {  // the first and the last of a bar are drawn whatever the time
      Progress bar(what, 100);
      bar.set(done, detail);
    }
    _exit(0);
  }
  close(theirs);
  std::string all;
  char part[4096];
  for (ssize_t n; (n = read(ours, part, sizeof part)) > 0;) all.append(part, static_cast<size_t>(n));
  close(ours);
  waitpid(child, nullptr, 0);
  std::vector<std::string> out;
  for (size_t at = 0, end; at < all.size(); at = end) {
    EXPECT_EQ(all.compare(at, 4, "\r\x1b[K"), 0) << all;
    end = std::min(all.find('\r', at + 1), all.size());
    if (end > at + 4) out.push_back(all.substr(at + 4, end - at - 4));
  }
  return out;
}

TEST(Terminal, BarsFitTheirTerminal) {
  const auto blocks = [](int full, int open) {
    std::string bar;
    for (int i = 0; i < full + open; ++i) bar += i < full ? "█" : "░";
    return bar;
  };
  const auto lines = [](const std::string& full, const std::string& half) {
    return std::vector<std::string>{full, half};
  };
  EXPECT_EQ(drawn(80, "proving", "moe x"),
            lines("proving " + blocks(24, 0) + " 100% moe x", "proving " + blocks(12, 12) + "  50% moe x"));
  EXPECT_EQ(drawn(44, "proving", "Gdn\xc3\xbcppe x"), lines("proving " + blocks(24, 0) + " 100% Gdn\xc3\xbcp",
                                                            "proving " + blocks(12, 12) + "  50% Gdn\xc3\xbcp"));
  EXPECT_EQ(drawn(30, "proving", "moe x"),
            lines("proving " + blocks(16, 0) + " 100%", "proving " + blocks(8, 8) + "  50%"));
  EXPECT_EQ(drawn(20, "proving", "moe x"),
            lines("proving " + blocks(6, 0) + " 100%", "proving " + blocks(3, 3) + "  50%"));
  EXPECT_EQ(drawn(20, "proving now", "moe x"), lines("proving now 100%", "proving now  50%"));
  EXPECT_EQ(drawn(20, "an/owner/with-a-long-name", "x"), lines("an/owner/with- 100%", "an/owner/with-  50%"));
  EXPECT_EQ(drawn(20, "\xc3\xbc\xc3\xbc\xc3\xbc", "x"), lines("\xc3\xbc\xc3\xbc\xc3\xbc " + blocks(10, 0) + " 100%",
                                                              "\xc3\xbc\xc3\xbc\xc3\xbc " + blocks(5, 5) + "  50%"));
  EXPECT_EQ(drawn(7, "proving", "moe x"), lines("p 100%", "p  50%"));
  EXPECT_EQ(drawn(6, "proving", "moe x"), lines("100%", " 50%"));
  EXPECT_EQ(drawn(4, "proving", "moe x"), lines("100", " 50"));
  EXPECT_EQ(drawn(1, "proving", "moe x"), std::vector<std::string>{});
}

TEST(Terminal, WhatCommandsATerminalIsNotPrintable) {
  EXPECT_EQ(printable("\x1b[2J\x07 a\tb\x7f\xC2\x9B"
                      "2J \xC2\xA9 \xC3\xA4 \xC2"),
            " [2J  a b   2J \xC2\xA9 \xC3\xA4 \xC2");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a b");
  EXPECT_EQ(printable(""), "");
}

TEST(Terminal, TablesAreAligned) {
  Table t({"name", "n"});
  t.add({"é", "12"});
  t.add({"longer", "7"});
  EXPECT_EQ(t.text({1}), "name     n\né       12\nlonger   7\n");
}

}  // namespace
}  // namespace mettle
