#include "doctor/doctor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/temporary_folder.h"
#include "doctor/checks.h"
#include "doctor/leftovers.h"

namespace mettle::doctor {
namespace {

namespace fs = std::filesystem;

// A folder that looks like a machine.
class Fake : public testing::Test, public Machine {
 protected:
  Fake() : Fake(std::make_unique<TemporaryFolder>()) {}
  explicit Fake(std::unique_ptr<TemporaryFolder> folder) : Machine(folder->path()), folder_(std::move(folder)) {
    write("/proc/uptime", "1000000.00 1.00\n");
    write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 avx512f\n\nprocessor\t: 1\n");
    write("/proc/meminfo", "MemTotal:       100000000 kB\nMemAvailable:   90000000 kB\n");
    write("/dev/nvidia-uvm", "");
  }
  ~Fake() override {
    unsetenv("FAKE_NVML");
    unsetenv("FAKE_NVML_PID");
  }
  void write(const std::string& path, const std::string& content) {
    fs::create_directories(at(path).parent_path());
    std::ofstream(at(path), std::ios::binary) << content;
  }
  void add_process(int64_t pid, int64_t parent, int64_t session, const std::string& name, uint64_t start = 100,
                   int64_t user = -1, const std::string& ignored = "0000000000000000") {
    const std::string folder = "/proc/" + std::to_string(pid);
    write(folder + "/stat", std::to_string(pid) + " (" + name + ") S " + std::to_string(parent) + " 1 " +
                                std::to_string(session) + " 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 " + std::to_string(start) +
                                " 0 0\n");
    write(folder + "/status", "Name:\tx\nUid:\t" + std::to_string(user < 0 ? geteuid() : static_cast<uid_t>(user)) +
                                  "\t0\t0\t0\nSigIgn:\t" + ignored + "\n");
    write(folder + "/cmdline", std::string(name) + '\0' + "serve");
  }
  void runs_this_program(int64_t pid) {
    fs::create_symlink(fs::read_symlink("/proc/self/exe"), at("/proc/" + std::to_string(pid) + "/exe"));
  }
  std::optional<Space> space(const std::string& path) const override { return path == "/dev/shm" ? shm_ : disk_; }

  Report examine(const std::string& mood = "", int deadline_ms = 20'000) {
    setenv("FAKE_NVML", mood.c_str(), 1);
    const Doctor doctor({.hub_cache = "/hub",
                         .cache_folder = cache_,
                         .nvml = {.library = mood.empty() ? "libnone-of-that-name.so.1" : METTLE_FAKE_NVML,
                                  .deadline_ms = deadline_ms,
                                  .others = others_}},
                        *this);
    return doctor.examine();
  }
  static const Finding* find(const Report& report, const std::string& name) {
    const auto at =
        std::find_if(report.findings.begin(), report.findings.end(), [&](const Finding& f) { return f.name == name; });
    return at == report.findings.end() ? nullptr : &*at;
  }
  // Whoever is not ok says why; errors and warnings say what to do as well.
  static void expect_complete(const Report& report) {
    for (const Finding& f : report.findings) {
      EXPECT_FALSE(f.value.empty()) << f.name;
      if (f.severity != Severity::kOk) {
        EXPECT_FALSE(f.why.empty()) << f.name;
      }
      if (f.severity == Severity::kError) {
        EXPECT_FALSE(f.fix.empty()) << f.name;
      }
    }
    EXPECT_TRUE(nlohmann::json::accept(report_json(report)));
    EXPECT_FALSE(report_text(report, false).empty());
  }
#define EXPECT_FINDING(report, name_, severity_, part)                                                     \
  do {                                                                                                     \
    const Report& kept = report;                                                                           \
    const Finding* f = find(kept, name_);                                                                  \
    ASSERT_NE(f, nullptr) << name_ << "\n" << report_text(kept, false);                                    \
    EXPECT_EQ(name_of(f->severity), std::string(name_of(severity_))) << name_ << ": " << f->value;         \
    EXPECT_NE((f->value + f->why + f->fix).find(part), std::string::npos) << f->value << f->why << f->fix; \
  } while (0)

  const std::unique_ptr<TemporaryFolder> folder_;
  std::optional<Space> shm_ = Space{int64_t{64} << 30, int64_t{64} << 30},
                       disk_ = Space{int64_t{1} << 42, int64_t{1} << 41};
  std::string cache_;
  std::vector<std::string> others_ = {"libnone-of-that-name.so.9"};
};

using Doctored = Fake;

TEST_F(Doctored, NoGpuIsFine) {
  const Report r = examine();
  expect_complete(r);
  EXPECT_FINDING(r, "NVIDIA driver", Severity::kInfo, "no NVIDIA GPU on the PCI bus");
  EXPECT_EQ(r.worst(), Severity::kInfo);
}

TEST_F(Doctored, NothingAtAllCanBeRead) {
  for (const char* path : {"/proc", "/dev"}) fs::remove_all(at(path));
  disk_.reset();
  expect_complete(examine());
}

TEST_F(Doctored, GpuOnTheBusWithoutDriver) {
  write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  const Report r = examine();
  EXPECT_FINDING(r, "NVIDIA driver", Severity::kError, "1 NVIDIA GPU(s) on the PCI bus");
}

TEST_F(Doctored, HealthyGpus) {
  write("/dev/kmsg", "6,1,2,-;NVRM: loading\n");
  const Report r = examine("good");
  expect_complete(r);
  EXPECT_FINDING(r, "NVIDIA driver", Severity::kOk, "580.95.05, CUDA 13.0, 2 GPU(s)");
  EXPECT_FINDING(r, "gpu 1", Severity::kOk, "sm120, 96.0 GiB");
  EXPECT_FINDING(r, "gpu 0 memory", Severity::kOk, "0.6 GiB of 96.0 GiB");
  EXPECT_FINDING(r, "gpu 0 power", Severity::kOk, "100 W now, cap 600 W");
  EXPECT_FINDING(r, "gpu 0 clocks", Severity::kOk, "2430 MHz now, up to 3090 MHz");
  EXPECT_FINDING(r, "gpu 0 PCIe", Severity::kOk, "gen 5 x16");
  EXPECT_FINDING(r, "gpu 0 - gpu 1", Severity::kOk, "peer access yes");
  EXPECT_FINDING(r, "Xid history", Severity::kOk, "none");
}

TEST_F(Doctored, EveryTroubleHasNumbersAndAFix) {
  write("/dev/kmsg",
        "4,1,2,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n"
        "4,2,2,-;NVRM: Xid (PCI:0000:01:00): 31, x\n4,3,2,-;NVRM: Xid (PCI:0000:01:00): 31, y\n"
        "4,4,2,-;NVRM: Xid (PCI:0000:02:00): 777, z\n4,5,2,-;Xid (never closed");
  write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.10.01  Mon\n");
  write("/usr/local/cuda-14.1/version.json", R"({"cuda": {"version": "14.1.0"}})");
  write("/usr/local/cuda-13.2/version.json", R"({"cuda": {"version": "13.2.0"}})");
  write("/usr/local/cuda-12.8/version.json", R"({"cuda": {"version": "12.8.1"}})");
  write("/usr/local/cuda-bad/version.json", "{[");
  fs::remove(at("/dev/nvidia-uvm"));
  const Report r = examine("trouble");
  expect_complete(r);
  EXPECT_FINDING(r, "NVIDIA driver", Severity::kError, "kernel module 570.10.01");
  EXPECT_FINDING(r, "/dev/nvidia-uvm", Severity::kError, "modprobe");
  EXPECT_FINDING(r, "/usr/local/cuda-14.1", Severity::kError, "the driver knows CUDA 13.0");
  EXPECT_FINDING(r, "/usr/local/cuda-13.2", Severity::kInfo, "PTX");
  EXPECT_FINDING(r, "/usr/local/cuda-12.8", Severity::kOk, "CUDA 12.8");
  EXPECT_FINDING(r, "gpu 0 memory", Severity::kWarning, "20.0 GiB of it by nobody");
  EXPECT_FINDING(r, "gpu 0 power", Severity::kWarning, "sudo nvidia-smi -i 0 -pl 600");
  EXPECT_FINDING(r, "gpu 1 clocks", Severity::kWarning, "375 MHz now, up to 3090 MHz, 40 C, hardware thermal limit");
  EXPECT_FINDING(r, "gpu 0 ECC", Severity::kError, "3 uncorrected");
  EXPECT_FINDING(r, "gpu 0 compute mode", Severity::kWarning, "one process at a time");
  EXPECT_FINDING(r, "gpu 0 persistence", Severity::kInfo, "-pm 1");
  EXPECT_FINDING(r, "gpu 0 PCIe", Severity::kWarning, "gen 1 x4, able to gen 5 x16");
  EXPECT_FINDING(r, "gpu 0 - gpu 1", Severity::kInfo, "peer access no, different NUMA nodes");
  EXPECT_FINDING(r, "Xid 79", Severity::kError, "1 times on PCI:0000:01:00: the GPU has fallen off the bus");
  EXPECT_FINDING(r, "Xid 31", Severity::kWarning, "2 times");
  EXPECT_FINDING(r, "Xid 777", Severity::kWarning, "NVIDIA's table");
}

TEST_F(Doctored, ProcessesOnAGpuAreNamed) {
  add_process(4242, 1, 4242, "python", 100, 0);
  write("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nmia:x:1000:1000::/home/mia:/bin/bash\n");
  setenv("FAKE_NVML_PID", "4242", 1);
  Report r = examine("lost");
  EXPECT_FINDING(r, "gpu 0 process 4242", Severity::kInfo, "python of root, 11 d 13 h old, 19.0 GiB: python serve");
  EXPECT_FINDING(r, "gpu 0 memory", Severity::kOk, "1 process(es)");  // 1 GiB more than it holds is the driver's
  EXPECT_FINDING(r, "NVIDIA driver", Severity::kError, "GPU 1: GPU is lost");
  setenv("FAKE_NVML_PID", "4243", 1);
  r = examine("good");
  EXPECT_FINDING(r, "gpu 0 process 4243", Severity::kInfo, "not visible from here");
}

TEST_F(Doctored, BrokenDriverLibraries) {
  Report r = examine("mismatch");
  expect_complete(r);
  EXPECT_FINDING(r, "NVIDIA driver", Severity::kError, "Driver/library version mismatch");
  EXPECT_FINDING(r, "NVIDIA driver", Severity::kError, "rmmod");
  r = examine("crash");
  expect_complete(r);
  EXPECT_FINDING(r, "NVIDIA driver", Severity::kError, "ended by signal 6");
  r = examine("hang", 300);
  expect_complete(r);
  EXPECT_FINDING(r, "NVIDIA driver", Severity::kError, "gave no answer in 0.3 s");
  EXPECT_LE(waitpid(-1, nullptr, WNOHANG), 0);  // no child is left
}

TEST_F(Doctored, ADriverThatTellsSlowlyIsNotWaitedForBeyondTheDeadline) {
  // It says one thing after the other and would come to its end after a second: the deadline is that of the whole.
  const Report r = examine("slow", 300);
  expect_complete(r);
  EXPECT_FINDING(r, "NVIDIA driver", Severity::kError, "gave no answer in 0.3 s");
}

TEST_F(Doctored, OddAnswersOfTheDriver) {
  const Report r = examine("odd");
  expect_complete(r);
  int gpus = 0;
  for (const Finding& f : r.findings) gpus += f.name.starts_with("gpu ") && f.name.find(' ', 4) == std::string::npos;
  EXPECT_EQ(gpus, 64);
}

TEST_F(Doctored, LibrariesThatWouldBeLoaded) {
  others_ = {"libc.so.6", "libnone-of-that-name.so.9"};
  const Report r = examine("good");
  EXPECT_FINDING(r, "libc.so.6", Severity::kOk, "libc");
  EXPECT_FINDING(r, "libnone-of-that-name.so.9", Severity::kInfo, "not found");
}

TEST_F(Doctored, FabricTraps) {
  const std::string bridge = "/sys/bus/pci/devices/0000:00:01.0";
  write(bridge + "/class", "0x060400\n");
  std::string config(4096, '\0');
  config[0x100] = 0x01;  // AER first, the next one at 0x148
  config[0x103] = 0x14;
  config[0x102] = static_cast<char>(0x80);
  config[0x148] = 0x0D;
  config[0x14E] = 0x1D;
  write(bridge + "/config", config);
  write("/sys/bus/pci/devices/0000:01:00.0/class", "0x020000\n");  // no bridge
  write("/sys/bus/pci/devices/0000:01:00.0/config", config);
  write("/sys/kernel/iommu_groups/0/type", "DMA\n");
  write("/proc/cmdline", "quiet\n");
  Report r = examine("good");
  expect_complete(r);
  EXPECT_FINDING(r, "ACS", Severity::kWarning, "1 of 1 bridges redirect peer traffic (first 0000:00:01.0)");
  EXPECT_FINDING(r, "IOMMU", Severity::kWarning, "iommu=pt");
  config[0x14E] = 0;
  write(bridge + "/config", config);
  write("/proc/cmdline", "quiet iommu=pt\n");
  r = examine("good");
  EXPECT_FINDING(r, "ACS", Severity::kOk, "0 of 1");
  EXPECT_FINDING(r, "IOMMU", Severity::kOk, "pass-through");
  write(bridge + "/config", config.substr(0, 64));
  EXPECT_FINDING(examine("good"), "ACS", Severity::kInfo, "cannot be read");
  config[0x102] = 0x00;  // a list that never ends
  config[0x103] = 0x10;
  write(bridge + "/config", config);
  EXPECT_FINDING(examine("good"), "ACS", Severity::kOk, "0 of 1");
}

TEST_F(Doctored, CpuMemoryAndLimits) {
  write("/proc/cpuinfo", "model name : Old\nflags : fpu sse2\n");
  write("/proc/meminfo", "MemTotal: 100000 kB\nMemAvailable: 100 kB\n");
  write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  write("/dev/shm/x", "");
  shm_ = Space{64 << 20, 64 << 20};
  disk_ = Space{int64_t{1} << 40, int64_t{1} << 30};
  write("/hub/models--a--b/refs/main", "x");
  write("/sys/devices/system/node/node0/x", "");
  write("/sys/devices/system/node/node1/x", "");
  write("/proc/sys/kernel/numa_balancing", "1\n");
  write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  write("/sys/fs/cgroup/memory.max", "1000000\n");
  write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  write("/sys/fs/cgroup/pids.max", "100\n");
  write("/.dockerenv", "");
  write("/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1024                 4096                 files     \n"
        "Max locked memory         8388608              8388608              bytes     \n"
        "Max processes             unlimited            unlimited            processes \n"
        "Max core file size        0                    unlimited            bytes     \n");
  const Report r = examine();
  expect_complete(r);
  EXPECT_FINDING(r, "CPU", Severity::kWarning, "AVX2");
  EXPECT_FINDING(r, "RAM", Severity::kWarning, "of 97.7 MiB");
  EXPECT_FINDING(r, "huge pages", Severity::kInfo, "never");
  EXPECT_FINDING(r, "/dev/shm", Severity::kWarning, "--shm-size");
  EXPECT_FINDING(r, "hub cache", Severity::kWarning, "1 model(s), 1.0 GiB free");
  EXPECT_FINDING(r, "NUMA", Severity::kInfo, "2 node(s)");
  EXPECT_FINDING(r, "governor", Severity::kInfo, "powersave");
  EXPECT_FINDING(r, "cgroup memory", Severity::kWarning, "--memory");
  EXPECT_FINDING(r, "cgroup CPU", Severity::kInfo, "at most 1.5 cores");
  EXPECT_FINDING(r, "cgroup pids", Severity::kWarning, "at most 100");
  EXPECT_FINDING(r, "container", Severity::kInfo, "Docker");
  EXPECT_FINDING(r, "open files", Severity::kWarning, "1024");
  EXPECT_FINDING(r, "locked memory", Severity::kInfo, "8.0 MiB");
  EXPECT_FINDING(r, "processes", Severity::kOk, "unlimited");
  EXPECT_FINDING(r, "core files", Severity::kInfo, "0 bytes");
  EXPECT_FINDING(r, "core files", Severity::kInfo, "ulimit -c");
}

TEST_F(Doctored, TheCacheOfProofsCanBeKept) {
  EXPECT_EQ(find(examine(), "proofs"), nullptr);
  cache_ = "/home/u/.cache/mettle";
  write("/home/u/x", "");
  EXPECT_FINDING(examine(), "proofs", Severity::kOk, "/home/u/.cache/mettle");
  write("/home/u/.cache", "a file");
  const Report r = examine();
  expect_complete(r);
  EXPECT_FINDING(r, "proofs", Severity::kWarning, "/home/u/.cache is no folder");
  EXPECT_FINDING(r, "proofs", Severity::kWarning, "XDG_CACHE_HOME");
  if (geteuid() == 0) return;  // who may write anywhere
  cache_ = "/shut/mettle";
  write("/shut/x", "");
  fs::permissions(at("/shut"), fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_FINDING(examine(), "proofs", Severity::kWarning, "/shut cannot be written");
}

TEST_F(Doctored, PortsAndWhoListens) {
  write("/proc/net/tcp",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 777 1\n"
        "   1: 0100007F:7530 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1000        0 778 1\nrubbish\n");
  add_process(55, 1, 55, "vllm");
  fs::create_directories(at("/proc/55/fd"));
  fs::create_symlink("socket:[777]", at("/proc/55/fd/3"));
  const Report r = examine();
  EXPECT_FINDING(r, "port 8000", Severity::kInfo, "in use by vllm (process 55 of");
  EXPECT_FINDING(r, "port 30000", Severity::kOk, "free");  // connected, not listening
}

TEST_F(Doctored, OwnLeftoversAreExactlyThose) {
  add_process(1, 0, 1, "init");
  add_process(10, 1, 10, "bash");
  struct Case {
    int64_t pid, parent, session, user;
    const char* ignored;
    bool ours, leftover;
  } cases[] = {
      {20, 1, 19, -1, "0000000000000000", true, true},    // its shell died
      {21, 10, 10, -1, "0000000000000000", true, false},  // its shell lives
      {22, 1, 22, -1, "0000000000000000", true, false},   // a service: leads its session
      {23, 1, 19, -1, "0000000000000001", true, false},   // nohup
      {24, 1, 19, 65533, "0000000000000000", true, false},
      {25, 1, 19, -1, "0000000000000000", false, false},  // another program of that name
      {26, 77, 19, -1, "0000000000000000", true, false},  // a parent that cannot be seen is not gone
  };
  for (const Case& c : cases) {
    add_process(c.pid, c.parent, c.session, "mettle) S 1 (x", 100, c.user, c.ignored);
    if (c.ours) runs_this_program(c.pid);
  }
  const Report r = examine();
  ASSERT_EQ(r.leftovers.size(), 1u);
  EXPECT_EQ(r.leftovers[0].pid, 20);
  EXPECT_FINDING(r, "mettle process 20", Severity::kWarning, "mettle doctor --clean");
}

TEST_F(Doctored, OwnFilesAreExactlyThose) {
  add_process(30, 1, 30, "alive");
  for (const char* name : {"a.json.31.0.tmp", "deep/er/b.32.7.tmp"}) write(std::string("/cache/") + name, "x");
  for (const char* name : {"a.json", "a.tmp", "a.31.tmp", "a.30.0.tmp", ".31.0.tmp", "a.-3.0.tmp", "a.x.0.tmp"})
    write(std::string("/cache/") + name, "x");
  fs::create_symlink(at("/proc/uptime"), at("/cache/link.31.1.tmp"));
  fs::create_directories(at("/cache/folder.31.2.tmp"));
  const auto files = own_files(*this, "/cache");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0], at("/cache/a.json.31.0.tmp"));
  EXPECT_EQ(files[1], at("/cache/deep/er/b.32.7.tmp"));
}

// Starts a child that ends at SIGTERM, or ignores it.
pid_t start_child(bool stubborn) {
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    if (stubborn) signal(SIGTERM, SIG_IGN);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  close(ready[1]);
  return pid;
}

TEST(EndProcess, AsksFirstThenKills) {
  const Machine machine;
  for (const bool stubborn : {false, true}) {
    const pid_t pid = start_child(stubborn);
    const std::optional<Process> p = read_process(machine, pid);
    ASSERT_TRUE(p.has_value());
    EXPECT_EQ(end_process(machine, *p, stubborn ? 50 : 60'000), stubborn ? Ended::kKilled : Ended::kTerminated);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(WTERMSIG(status), stubborn ? SIGKILL : SIGTERM);
    EXPECT_EQ(end_process(machine, *p), Ended::kGone);
  }
}

TEST(EndProcess, ANumberThatBelongsToAnotherIsLeftAlone) {
  const Machine machine;
  const pid_t pid = start_child(false);
  std::optional<Process> p = read_process(machine, pid);
  ASSERT_TRUE(p.has_value());
  ++p->start_ticks;
  EXPECT_EQ(end_process(machine, *p), Ended::kAnother);
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), 0);  // it lives
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST_F(Doctored, CleanAsksBeforeWhatIsNotOurs) {
  const pid_t pid = start_child(false);
  const std::optional<Process> real = read_process(Machine(), pid);
  ASSERT_TRUE(real.has_value());
  Report report;
  report.gpu_users = {*real};
  const Machine machine;
  const Doctor doctor({.hub_cache = "/hub", .cache_folder = "", .nvml = {}}, machine);
  std::vector<std::string> done = doctor.clean(report, {});
  ASSERT_EQ(done.size(), 1u);
  EXPECT_NE(done[0].find("nobody can be asked"), std::string::npos);
  std::string asked;
  done = doctor.clean(report, [&](const std::string& question) {
    asked = question;
    return false;
  });
  EXPECT_NE(asked.find(std::to_string(pid)), std::string::npos);
  EXPECT_NE(done.at(0).find("left alone"), std::string::npos);
  EXPECT_EQ(waitpid(pid, nullptr, WNOHANG), 0);  // it lives
  done = doctor.clean(report, [](const std::string&) { return true; });
  EXPECT_NE(done.at(0).find("ended"), std::string::npos);
  waitpid(pid, nullptr, 0);

  write("/cache/x.1.2.tmp", "half");
  report = {};
  report.files = {at("/cache/x.1.2.tmp")};
  done = doctor.clean(report, {});
  EXPECT_NE(done.at(0).find("removed"), std::string::npos);
  EXPECT_FALSE(fs::exists(report.files[0]));
}

TEST(DoctorReport, ExitsByTheWorst) {
  Report report;
  EXPECT_EQ(report.worst(), Severity::kOk);
  report.findings = {{"gpu", "a", Severity::kWarning, "v\xFF", "w", "f"}, {"gpu", "b", Severity::kInfo, "v", "w", ""}};
  EXPECT_EQ(report.worst(), Severity::kWarning);
  EXPECT_TRUE(nlohmann::json::accept(report_json(report)));
  const std::string text = report_text(report, false);
  EXPECT_NE(text.find("0 errors, 1 warnings, 1 notes, 0 ok"), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(report_text(report, true).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace mettle::doctor
