// SIGINT and SIGTERM of a running command. Before install() they end the process at once, which is what a person wants
// while a model loads: files are written by renaming, children die with their parent.
#pragma once

namespace mettle::signals {

enum class Second { kExits, kCounts };

// From now on a signal only counts; with kExits the second one ends the process at once (exit code 128 + signal).
void install(Second second);
int received();  // signals since install() or the last clear()
int last();      // number of the last one; 0: none
void clear();
void wait();  // until one is received

}  // namespace mettle::signals
