// Verdicts on disk under many hands: concurrent writers, damage at any place, a disk without room, what is forgotten.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "base/file_map.h"
#include "base/temporary_folder.h"
#include "prove/store.h"

namespace mettle {
namespace {

using testing::HasSubstr;

Device cpu() {
  Device d;
  d.model = "a CPU";
  return d;
}

ProofEntry entry(int number) {
  ProofEntry e{.op = "join", .backend = "x", .tactic = "y", .problem = fmt::format("p{}", number), .numerics = "n"};
  e.bound = 10;
  e.comparisons = 5;
  return e;
}

bool has(const VerdictStore& store, int number) {
  ProofEntry e = entry(number);
  bool timed = false;
  return store.find(e, 1, &timed);
}

// A child process that runs it and ends with its answer.
template <class F>
pid_t in_child(F&& f) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  bool ok = false;
  try {
    ok = f();
  } catch (...) {
  }
  _exit(ok ? 0 : 1);
}
bool ended_well(pid_t pid) {
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class StoreFile : public testing::Test {
 protected:
  std::string folder() const { return folder_.path(); }
  VerdictStore open(const std::string& build = "b") const { return {folder(), build, cpu()}; }
  std::string file() const { return open().path(); }
  void keep(int number, const std::string& build = "b") const {
    VerdictStore store = open(build);
    store.put(entry(number), 1);
    store.save();
  }
  void write(const std::string& content) const { std::ofstream(file(), std::ios::binary) << content; }
  // With the checksum that makes it look whole.
  void write_body(const std::string& body) const {
    uint64_t h = 0xCBF29CE484222325u;
    for (const char c : body) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
    write(fmt::format("mettle-verdicts 2 {:016x}\n{}", h, body));
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& e : std::filesystem::directory_iterator(folder_ / "verdicts")) out.push_back(e.path().filename());
    std::sort(out.begin(), out.end());
    return out;
  }

  TemporaryFolder folder_;
};

TEST_F(StoreFile, SixteenProcessesOnAnEmptyCacheLoseNothing) {
  constexpr int kProcesses = 16, kRounds = 5;
  for (int round = 0; round < kRounds; ++round) {
    std::filesystem::remove_all(folder_ / "verdicts");
    int gate[2];
    ASSERT_EQ(pipe(gate), 0);
    std::vector<pid_t> pids;
    for (int i = 0; i < kProcesses; ++i)
      pids.push_back(in_child([&, i] {
        close(gate[1]);
        char c = 0;
        if (read(gate[0], &c, 1) != 0) return false;  // until all are there
        keep(i);
        return has(open(), i);
      }));
    close(gate[0]);
    close(gate[1]);
    for (const pid_t pid : pids) EXPECT_TRUE(ended_well(pid));
    const VerdictStore store = open();
    for (int i = 0; i < kProcesses; ++i) EXPECT_TRUE(has(store, i)) << "round " << round << ", process " << i;
    EXPECT_EQ(names().size(), 1u) << testing::PrintToString(names());
  }
}

TEST_F(StoreFile, DamageAtAnyPlaceIsAMissAndNextTimeItIsWrittenAnew) {
  for (int i = 0; i < 3; ++i) keep(i);
  const std::string whole = read_file(file(), 1 << 20);
  std::mt19937_64 random(5);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (int i = 0; i < 600; ++i) {
    std::string damaged = whole;
    switch (i % 5) {
      case 0:
        damaged[below(whole.size())] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        damaged.resize(below(whole.size()));
        break;
      case 2:
        damaged.insert(below(whole.size()), 1, static_cast<char>(random()));
        break;
      case 3:
        damaged.erase(below(whole.size()), 1 + below(50));
        break;
      default:  // a page of zeros, as a crash of the machine leaves it
        std::fill_n(damaged.begin() + static_cast<std::ptrdiff_t>(below(whole.size() / 2)), whole.size() / 3, '\0');
    }
    if (damaged == whole) continue;
    write(damaged);
    EXPECT_FALSE(has(open(), 1)) << "damage " << i;
  }
  keep(1);
  EXPECT_TRUE(has(open(), 1));
  EXPECT_FALSE(has(open(), 2));
}

TEST_F(StoreFile, ForeignContentIsAMiss) {
  keep(1);
  const std::string good = read_file(file(), 1 << 20);
  const std::string body = good.substr(good.find('\n') + 1);
  write_body(body);
  ASSERT_TRUE(has(open(), 1));  // so that what follows is refused for what it says
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = body;
    const size_t at = other.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return other.replace(at, from.size(), to);
  };
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  for (const std::string& other :
       {std::string("{}"), std::string("[]"), std::string("null"), std::string("{\"identity\": 3, \"entries\": []}"),
        changed("\"b cpu", "\"c cpu"), changed("a CPU", "another"), deep}) {
    write_body(other);
    EXPECT_FALSE(has(open(), 1)) << other.substr(0, 200);
  }
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"\"verdict\": \"OK\"", "\"verdict\": \"FINE\""},
                                                        {"\"verdict\": \"OK\"", "\"verdict\": 0"},
                                                        {"\"comparisons\": 5", "\"comparisons\": 0"},
                                                        {"\"comparisons\": 5", "\"comparisons\": \"many\""},
                                                        {"\"max_error\": 0.0", "\"max_error\": 11.0"},
                                                        {"\"max_error\": 0.0", "\"max_error\": null"},
                                                        {"\"group_error\": 0.0", "\"group_error\": 1.5"},
                                                        {"\"us\": {}", "\"us\": {\"1\": [1]}"},
                                                        {"\"us\": {}", "\"us\": 7"}}) {
    write_body(changed(from, to));
    EXPECT_FALSE(has(open(), 1)) << to;
  }
  write("mettle-verdicts 1 " + good.substr(good.find(' ', 16) + 1));
  EXPECT_FALSE(has(open(), 1)) << "another version";
}

TEST_F(StoreFile, AFolderInItsPlaceIsOneWarning) {
  std::filesystem::create_directories(file() + "/inside");
  EXPECT_FALSE(has(open(), 1));
  testing::internal::CaptureStderr();
  keep(1);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_THAT(said, HasSubstr("not kept"));
  EXPECT_EQ(names().size(), 1u) << testing::PrintToString(names());
  EXPECT_THROW(open().forget(), Error);
  EXPECT_TRUE(std::filesystem::exists(file() + "/inside"));
}

TEST_F(StoreFile, ADiskWithoutRoomLeavesTheOldFile) {
  keep(1);
  const std::string before = read_file(file(), 1 << 20);
  EXPECT_TRUE(ended_well(in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit little{100, 100};
    if (setrlimit(RLIMIT_FSIZE, &little) != 0) return false;
    keep(2);  // a warning, and it goes on
    return has(open(), 1) && !has(open(), 2);
  })));
  EXPECT_EQ(read_file(file(), 1 << 20), before);
  EXPECT_EQ(names().size(), 1u) << testing::PrintToString(names());
}

TEST_F(StoreFile, AFolderThatOnlyMayBeReadIsRead) {
  keep(1);
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(folder_ / "verdicts", std::filesystem::perms(0555));
  EXPECT_TRUE(ended_well(in_child([&] {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return false;
    keep(2);
    try {
      open().forget();
      return false;
    } catch (const Error& e) {
      return has(open(), 1) && !has(open(), 2) && e.message.find("cannot delete") != std::string::npos;
    }
  })));
  std::filesystem::permissions(folder_ / "verdicts", std::filesystem::perms(0755));
  EXPECT_EQ(names().size(), 1u);
}

TEST_F(StoreFile, WhatKilledWritersLeftIsSweptByTheNext) {
  keep(1);
  const std::string name = std::filesystem::path(file()).filename();
  for (const std::string& left : {name + ".1.0.tmp", name + fmt::format(".{}.3.tmp", getpid()), name + ".tmp.note",
                                  std::string("notes.tmp"), std::string("0123456789abcdef.json.7.7.tmp")})
    std::ofstream(folder_ / ("verdicts/" + left)) << "mettle-ver";
  keep(2);
  EXPECT_EQ(names(), (std::vector<std::string>{name, name + ".tmp.note", "notes.tmp"}));
}

TEST_F(StoreFile, ForgetsItsOwnOrAll) {
  EXPECT_TRUE(open().forget().empty());
  EXPECT_TRUE(VerdictStore::forget_all(folder()).empty());
  EXPECT_TRUE(VerdictStore::forget_all("none").empty());
  keep(1);
  keep(2);
  keep(3, "another build");
  const auto own = open().forget();
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0].path, file());
  EXPECT_EQ(own[0].verdicts, 2u);
  EXPECT_THAT(own[0].identity, HasSubstr("a CPU"));
  EXPECT_GT(own[0].bytes, 100u);
  EXPECT_FALSE(has(open(), 1));
  EXPECT_TRUE(has(open("another build"), 3));

  write("damaged");
  std::ofstream(folder_ / "verdicts/notes.json") << "mine";
  std::ofstream(folder_ / "verdicts/0123456789abcdef.json.7.7.tmp") << "half";
  const auto all = VerdictStore::forget_all(folder());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const auto& f) { return f.identity.empty(); }), 1);
  EXPECT_EQ(names(), std::vector<std::string>{"notes.json"});
}

TEST_F(StoreFile, AStoreThatForgotDoesNotWriteItAgain) {
  VerdictStore store = open();
  store.put(entry(1), 1);
  store.save();
  EXPECT_EQ(store.forget().size(), 1u);
  store.put(entry(2), 1);
  store.save();
  EXPECT_FALSE(has(open(), 1));
  EXPECT_TRUE(has(open(), 2));
}

TEST_F(StoreFile, ForgettingWhileOthersWriteLeavesWholeFiles) {
  std::vector<pid_t> pids;
  for (int i = 0; i < 6; ++i)
    pids.push_back(in_child([&, i] {
      for (int n = 0; n < 20; ++n) {
        if (i < 2)
          VerdictStore::forget_all(folder());
        else
          keep(i * 100 + n);
      }
      return true;
    }));
  for (const pid_t pid : pids) EXPECT_TRUE(ended_well(pid));
  keep(1);
  EXPECT_TRUE(has(open(), 1));
  EXPECT_EQ(names().size(), 1u) << testing::PrintToString(names());
}

}  // namespace
}  // namespace mettle
