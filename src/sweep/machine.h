// What a cell may leave behind or find taken on this machine: ports, shared memory, lines of the kernel's log.
#pragma once
#include <sys/types.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace mettle::sweep {

// Nobody listens on the TCP port, on any address, and it can be taken.
bool port_is_free(int port);
// Somebody listens on it. Takes the port not even for a moment, so that a starting server is not disturbed.
bool port_has_listener(int port);
// One that is free, below the range that outgoing connections use; another one at each call. Fails with kDevice.
int pick_port();
// "process 12 (python3 server.py)", or "a process that cannot be seen".
std::string port_owner(int port);

// Files of /dev/shm, by name, with their inodes.
using SharedFiles = std::map<std::string, ino_t>;
SharedFiles shared_files();
// Adds the names of those that the processes have open or mapped now.
void note_shared_files(const std::vector<pid_t>& processes, std::set<std::string>& names);
// Removes those of `used` that came after `before` and are still there; their names.
std::vector<std::string> remove_left_shared_files(const SharedFiles& before, const std::set<std::string>& used);

// The kernel's log from now on, where it may be read.
class KernelLog {
 public:
  KernelLog();
  ~KernelLog();
  KernelLog(const KernelLog&) = delete;
  KernelLog& operator=(const KernelLog&) = delete;
  bool readable() const { return fd_ >= 0; }
  std::string read_new();  // lines "[12.345678] text"; at most 1 MiB

 private:
  int fd_ = -1;
};

}  // namespace mettle::sweep
