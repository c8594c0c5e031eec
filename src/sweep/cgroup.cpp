#include "sweep/cgroup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

namespace mettle::sweep {
namespace {

// Mount point of a hierarchy: the unified one, or that of a controller of the old kind.
std::string mount_of(const std::string& controller) {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream in(line);
    std::string device, folder, type, options;
    in >> device >> folder >> type >> options;
    if (controller.empty()
            ? type == "cgroup2"
            : type == "cgroup" && ("," + options + ",").find("," + controller + ",") != std::string::npos)
      return folder;
  }
  return "";
}

std::string own_path(const std::string& controller) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string list = line.substr(first + 1, second - first - 1);
    if (list == controller) return line.substr(second + 1);
  }
  return "";
}

std::string own_folder(const std::string& controller) {
  const std::string mount = mount_of(controller), path = own_path(controller);
  if (mount.empty() || path.empty()) return "";
  // Inside a container the mount may begin at our own group.
  const std::string full = path == "/" ? mount : mount + path;
  return access(full.c_str(), F_OK) == 0 ? full : mount;
}

std::optional<uint64_t> counted(const std::string& file) {
  std::ifstream in(file);
  for (std::string name; in >> name;) {
    uint64_t value = 0;
    in >> value;
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

}  // namespace

Cgroup::Cgroup(const std::string& name) {
  const std::string own = own_folder("");
  if (own.empty()) return;
  const std::string wanted = own + "/" + name;
  if (mkdir(wanted.c_str(), 0755) == 0 || errno == EEXIST) path_ = wanted;
}

Cgroup::~Cgroup() {
  if (!path_.empty()) rmdir(path_.c_str());
}

std::vector<pid_t> Cgroup::members() const {
  std::vector<pid_t> out;
  if (path_.empty()) return out;
  std::ifstream in(procs());
  for (pid_t pid = 0; in >> pid;)
    if (pid > 0) out.push_back(pid);  // 0: one that cannot be seen from here
  return out;
}

void Cgroup::kill() const {
  if (path_.empty()) return;
  std::ofstream out(path_ + "/cgroup.kill");  // since Linux 5.14; else the members are ended one by one
  out << "1" << std::flush;
}

std::optional<uint64_t> oom_kills() {
  const std::string unified = own_folder(""), old = own_folder("memory");
  if (!unified.empty())
    if (const auto count = counted(unified + "/memory.events")) return count;
  return old.empty() ? std::nullopt : counted(old + "/memory.oom_control");
}

}  // namespace mettle::sweep
