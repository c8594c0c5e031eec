#include "sweep/processes.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "sweep/cgroup.h"
#include "sweep/log_file.h"
#include "sweep/machine.h"
#include "sweep/result.h"
#include "sweep/server_process.h"

namespace mettle::sweep {
namespace {

using testing::HasSubstr;

constexpr double kPatience = 60;

bool wait_for(const std::function<bool()>& holds) {
  const auto start = std::chrono::steady_clock::now();
  while (!holds()) {
    if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(kPatience)) return false;
    usleep(5'000);
  }
  return true;
}

Launch shell(const TemporaryFolder& folder, const std::string& script) {
  return {{"sh", "-c", script}, {}, folder.path(), (folder / "log.txt").string(), 1 << 20, ""};
}

std::string log_of(const TemporaryFolder& folder) { return read_small((folder / "log.txt").string()); }

TEST(SweepProcesses, ASignalReachesOnlyTheProcessThatWasMeant) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const std::optional<Process> seen = read_process(child);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->parent, getpid());
  // The same number with another start is another process.
  EXPECT_FALSE(send({child, seen->id.start + 1}, SIGKILL));
  EXPECT_TRUE(read_process(child) && !read_process(child)->zombie);
  EXPECT_TRUE(send(seen->id, SIGKILL));
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(send(seen->id, SIGKILL));
}

TEST(SweepProcesses, ANameMayHoldWhatComesAfterIt) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NAME, "a) S 1 (b)");
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const std::optional<Process> seen = read_process(child);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->name, "a) S 1 (b)");
  EXPECT_EQ(seen->parent, getpid());
  EXPECT_TRUE(send(seen->id, SIGKILL));
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST(SweepProcesses, AnOrphanWithoutTheMarkIsAdopted) {
  // In a process of its own, which has no children from before; no control group helps.
  const pid_t sweep = fork();
  if (sweep == 0) {
    const Family family("000000000000000000000011");
    int told[2];
    pid_t orphan = 0;
    if (pipe(told) != 0) _exit(2);
    const pid_t parent = fork();
    if (parent == 0) {
      orphan = fork();
      if (orphan == 0) {
        setsid();
        pause();
        _exit(0);
      }
      _exit(write(told[1], &orphan, sizeof orphan) == sizeof orphan ? 0 : 3);
    }
    if (read(told[0], &orphan, sizeof orphan) != sizeof orphan) _exit(4);
    waitpid(parent, nullptr, 0);
    const std::vector<Process> members = family.members();
    const bool found = members.size() == 1 && members[0].id.pid == orphan && members[0].parent == getpid();
    kill(orphan, SIGKILL);
    // Whoever adopts has to take the dead away.
    const bool gone = wait_for([&] { return family.members().empty() && !read_process(orphan); });
    _exit(!found ? 5 : !gone ? 6 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(sweep, &status, 0), sweep);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(SweepProcesses, DescendantsBelongToItWithoutTheMark) {
  // With a child from before, which makes that being a child is not enough.
  const pid_t before = fork();
  if (before == 0) {
    pause();
    _exit(0);
  }
  TemporaryFolder folder;
  Family family("000000000000000000000013");
  {
    ServerProcess server(shell(folder, "env -i sh -c 'sh -c \"echo \\$\\$ > pid; exec sleep 600\"; :'; :"), family);
    std::string text;
    ASSERT_TRUE(wait_for([&] { return !(text = read_small((folder / "pid").string())).empty(); }));
    std::vector<pid_t> pids;
    for (const Process& p : family.members()) pids.push_back(p.id.pid);
    EXPECT_THAT(pids, testing::Contains(std::stoi(text)));
    EXPECT_GE(pids.size(), 2u);
    EXPECT_THAT(pids, testing::Not(testing::Contains(before)));
  }
  kill(before, SIGKILL);
  waitpid(before, nullptr, 0);
}

TEST(SweepProcesses, AMarkIsTheWholeWord) {
  const std::string mark = "000000000000000000000012";
  struct Stranger {
    std::string setting;
    bool ours;
  };
  for (const Stranger& s : {Stranger{"SWEEP_MARK=" + mark, true}, Stranger{"SWEEP_MARK=" + mark + "0", false},
                            Stranger{"OLD_SWEEP_MARK=" + mark, false}}) {
    // From before the family, so that the mark alone decides.
    const pid_t child = fork();
    if (child == 0) {
      std::string setting = s.setting;
      char* env[] = {setting.data(), nullptr};
      execle("/bin/sleep", "sleep", "600", nullptr, env);
      _exit(1);
    }
    ASSERT_TRUE(wait_for([&] {
      std::ifstream file("/proc/" + std::to_string(child) + "/environ");
      const std::string text((std::istreambuf_iterator<char>(file)), {});
      return text == s.setting + '\0';
    })) << s.setting;
    EXPECT_EQ(Family(mark).members().size(), s.ours ? 1u : 0u) << s.setting;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

TEST(SweepProcesses, ChildrenFromBeforeAndStrangersStay) {
  const pid_t before = fork();
  if (before == 0) {
    execlp("sleep", "sleep", "600", nullptr);
    _exit(1);
  }
  TemporaryFolder folder;
  Family family("00000000000000000000000a");
  {
    ServerProcess server(shell(folder, "sleep 600"), family);
    ASSERT_TRUE(wait_for([&] { return !family.members().empty(); }));
    for (const Process& p : family.members()) EXPECT_NE(p.id.pid, before);
  }
  EXPECT_TRUE(family.members().empty());
  EXPECT_TRUE(read_process(before) && !read_process(before)->zombie);
  kill(before, SIGKILL);
  waitpid(before, nullptr, 0);
}

TEST(SweepProcesses, ADetachedProcessWithAnEmptyEnvironmentIsFoundAndEnded) {
  TemporaryFolder folder;
  Family family("00000000000000000000000b");
  ServerProcess server(shell(folder,
                             "setsid sh -c 'env -i sleep 600 & echo $! > pid; exit 0'; trap 'exit 0' TERM; echo up; "
                             "while :; do sleep 0.05; done"),
                       family);
  std::string text;
  ASSERT_TRUE(wait_for([&] { return !(text = read_small((folder / "pid").string())).empty(); }));
  const pid_t detached = std::stoi(text);
  ASSERT_TRUE(read_process(detached));
  const ServerProcess::Stopped stop = server.stop(0.5, nullptr, [] {});
  EXPECT_FALSE(stop.forced);
  ASSERT_EQ(stop.left.size(), 1u);
  EXPECT_THAT(stop.left[0], HasSubstr("sleep 600"));
  EXPECT_TRUE(stop.immortal.empty());
  const std::optional<Process> after = read_process(detached);
  EXPECT_TRUE(!after || after->zombie);
}

TEST(SweepProcesses, ExitCodesAndSignals) {
  TemporaryFolder folder;
  Family family("00000000000000000000000c");
  ServerProcess exits(shell(folder, "echo hello; exit 7"), family);
  ASSERT_TRUE(wait_for([&] { return exits.ended().has_value(); }));
  EXPECT_EQ(exits.ended()->text(), "exit code 7");
  exits.finish_log();
  EXPECT_EQ(log_of(folder), "hello\n");
  ServerProcess dies(shell(folder, "kill -9 $$"), family);
  ASSERT_TRUE(wait_for([&] { return dies.ended().has_value(); }));
  EXPECT_EQ(dies.ended()->signal, 9);
}

TEST(SweepProcesses, WhatCannotBeStartedIsToldAndLeavesNothing) {
  TemporaryFolder folder;
  Family family("00000000000000000000000d");
  Launch launch = shell(folder, "");
  launch.words = {"/no/such/program"};
  try {
    ServerProcess server(launch, family);
    FAIL() << "started";
  } catch (const Error& e) {
    EXPECT_THAT(e.message, HasSubstr("/no/such/program: cannot be started: No such file"));
  }
  launch = shell(folder, "true");
  launch.folder = "/no/such/folder";
  EXPECT_THROW(ServerProcess(launch, family), Error);
  EXPECT_TRUE(family.members().empty());
}

TEST(SweepProcesses, AServerThatIgnoresSigtermIsKilled) {
  TemporaryFolder folder;
  Family family("00000000000000000000000e");
  Launch launch = shell(folder, "trap '' TERM; echo armed; while :; do sleep 0.05; done");
  launch.ready_pattern = "^arm.d$";
  ServerProcess server(launch, family);
  ASSERT_TRUE(wait_for([&] { return server.saw_ready(); }));
  EXPECT_EQ(server.last_line(), "armed");
  const ServerProcess::Stopped stop = server.stop(0.3, nullptr, [] {});
  EXPECT_TRUE(stop.forced);
  EXPECT_EQ(server.ended()->signal, SIGKILL);
  EXPECT_TRUE(family.members().empty());
}

TEST(SweepProcesses, ASecondFamilyFindsWhatAKilledOneLeft) {
  TemporaryFolder folder;
  const std::string mark = "00000000000000000000000f";
  // A child that plays the sweep, starts a server that starts another one, and is killed.
  const pid_t sweep = fork();
  if (sweep == 0) {
    Family family(mark);
    ServerProcess server(shell(folder, "setsid sleep 600 & echo $! > pid; wait"), family);
    pause();
    _exit(0);
  }
  std::string text;
  ASSERT_TRUE(wait_for([&] { return !(text = read_small((folder / "pid").string())).empty(); }));
  kill(sweep, SIGKILL);
  waitpid(sweep, nullptr, 0);
  const pid_t left = std::stoi(text);
  ASSERT_TRUE(read_process(left));
  EXPECT_TRUE(Family("000000000000000000000010").members().empty());  // of another sweep: not ours
  Family family(mark);
  const Cgroup group(group_name(family));  // taken over, and removed at the end
  EXPECT_FALSE(family.members().empty());
  EXPECT_TRUE(family.end_all(kPatience).empty());
  const std::optional<Process> after = read_process(left);
  EXPECT_TRUE(!after || after->zombie);
}

TEST(SweepLog, HeadTailAndACountOfWhatIsBetween) {
  TemporaryFolder folder;
  const std::string path = (folder / "log").string();
  std::string all;
  {
    LogFile log(path, 200);
    for (int i = 0; i < 1000; ++i) {
      const std::string line = std::to_string(i) + "\n";
      log.write(line);
      all += line;
    }
    EXPECT_EQ(log.bytes(), all.size());
    EXPECT_EQ(log.left_out(), all.size() - 200);
  }
  EXPECT_EQ(read_small(path), all.substr(0, 100) + "\n[sweep: " + std::to_string(all.size() - 200) +
                                  " bytes left out here]\n" + all.substr(all.size() - 100));
}

TEST(SweepLog, EveryCutOfTheWritesKeepsTheSameBytes) {
  std::string all;
  for (int i = 0; i < 60; ++i) all += static_cast<char>('0' + i % 10);
  for (size_t size = 0; size <= all.size(); ++size)
    for (const size_t piece : {1, 3, 7, 60}) {
      TemporaryFolder folder;
      const std::string path = (folder / "log").string();
      {
        LogFile log(path, 20);
        for (size_t at = 0; at < size; at += piece)
          log.write(std::string_view(all).substr(at, std::min(piece, size - at)));
      }
      const std::string left = size > 20 ? "\n[sweep: " + std::to_string(size - 20) + " bytes left out here]\n" : "";
      const std::string expected =
          size <= 20 ? all.substr(0, size) : all.substr(0, 10) + left + all.substr(size - 10, 10);
      ASSERT_EQ(read_small(path), expected) << size << " bytes in pieces of " << piece;
    }
}

TEST(SweepMachine, ATakenPortIsSeenWithItsOwner) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const int port = ntohs(address.sin_port);
  EXPECT_FALSE(port_is_free(port));
  EXPECT_TRUE(port_has_listener(port));
  EXPECT_THAT(port_owner(port), HasSubstr("process " + std::to_string(getpid()) + " ("));
  // A connection of that port is none that listens.
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const int accepted = accept(fd, nullptr, nullptr);
  ASSERT_GE(accepted, 0);
  close(fd);
  EXPECT_TRUE(wait_for([&] { return !port_has_listener(port); }));
  close(client);  // who closes first keeps his port for a minute
  close(accepted);
  EXPECT_TRUE(wait_for([&] { return port_is_free(port); }));
  const int picked = pick_port();
  EXPECT_TRUE(picked >= 20000 && picked <= 32000);
}

TEST(SweepMachine, OnlySharedFilesThatOurProcessesUsedAreRemoved) {
  const std::string ours = "mettle_sweep_test_ours_" + std::to_string(getpid()),
                    other = "mettle_sweep_test_other_" + std::to_string(getpid());
  const SharedFiles before = shared_files();
  std::ofstream mine("/dev/shm/" + ours);
  if (!mine) GTEST_SKIP() << "/dev/shm cannot be written";
  std::ofstream("/dev/shm/" + other) << "x";
  std::set<std::string> used;
  note_shared_files({getpid()}, used);
  EXPECT_EQ(used.count(ours), 1u);
  EXPECT_EQ(used.count(other), 0u);
  EXPECT_TRUE(remove_left_shared_files(shared_files(), used).empty());  // they were there before
  EXPECT_THAT(remove_left_shared_files(before, used), testing::ElementsAre(ours));
  EXPECT_EQ(access(("/dev/shm/" + ours).c_str(), F_OK), -1);
  EXPECT_EQ(unlink(("/dev/shm/" + other).c_str()), 0);
}

TEST(SweepMachine, ASharedFileOfTheSameNameMayBeAnother) {
  const std::string name = "mettle_sweep_test_again_" + std::to_string(getpid()), path = "/dev/shm/" + name;
  std::ofstream old(path);
  if (!old) GTEST_SKIP() << "/dev/shm cannot be written";
  const SharedFiles before = shared_files();
  std::ofstream(path + "_new") << "x";
  ASSERT_EQ(rename((path + "_new").c_str(), path.c_str()), 0);
  std::set<std::string> used;
  note_shared_files({getpid()}, used);  // the old one is open still, and has no name
  EXPECT_THAT(used, testing::Not(testing::Contains(HasSubstr(name))));
  EXPECT_THAT(remove_left_shared_files(before, {name}), testing::ElementsAre(name));
  EXPECT_EQ(access(path.c_str(), F_OK), -1);
}

}  // namespace
}  // namespace mettle::sweep
