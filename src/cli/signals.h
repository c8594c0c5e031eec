// SIGINT, SIGTERM and SIGHUP of a running command. Before install() they end the process at once, which is what a
// person wants while a model loads: files are written by renaming, children die with their parent.
#pragma once

namespace mettle::signals {

// kServe: the first signal counts, a SIGINT or SIGTERM after it ends the process at once (exit code 128 + signal).
//   SIGHUP stays ignored where it was so at the start (nohup).
// kChat: every SIGINT counts (it stops an answer); the others end the process.
enum class Use { kServe, kChat };
void install(Use use);

int received();  // signals since install() or the last clear()
void clear();
void wait();  // until one is received, or stop_waiting() was called by any thread
void stop_waiting();

}  // namespace mettle::signals
