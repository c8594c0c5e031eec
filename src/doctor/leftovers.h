// What this program left behind: its own processes whose parent died, its own half-written files. Nothing else counts,
// whatever its name is.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "doctor/machine.h"
#include "doctor/processes.h"

namespace mettle::doctor {

// Of this user, running this very executable file, its parent gone: it lives in a session that its parent is not of.
// Who leads a session of its own (systemd, setsid) or ignores SIGHUP (nohup) was meant to stay.
std::vector<Process> own_leftovers(const Machine& machine, const std::vector<Process>& all);

// Regular files of this user named NAME.PID.N.tmp, as write_file_atomically() makes them, whose process is gone.
std::vector<std::filesystem::path> own_files(const Machine& machine, const std::filesystem::path& folder);

enum class Ended { kTerminated, kKilled, kGone, kAnother, kNotAllowed, kStays };
const char* name_of(Ended ended);
// SIGTERM, and SIGKILL after patience_ms, to that process and to no other that got its number meanwhile.
Ended end_process(const Machine& machine, const Process& process, int patience_ms = 10'000);

}  // namespace mettle::doctor
