#include "cli/signals.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace mettle::signals {
namespace {

std::atomic<int> g_received{0};
std::atomic<bool> g_second_exits{false}, g_installed{false}, g_stop_waiting{false};
sem_t g_arrived;

// Only what is safe in a signal handler. A terminal that closes tells the same up to three times (the kernel, the
// shell, the kernel again at the shell's end), and systemd adds SIGHUP to its SIGTERM: never a person's second signal.
void handle(int number) {
  const int saved = errno;
  if (g_received.fetch_add(1) > 0 && g_second_exits && number != SIGHUP) _exit(128 + number);
  sem_post(&g_arrived);
  errno = saved;
}

}  // namespace

void install(Use use) {
  sem_init(&g_arrived, 0, 0);
  g_installed = true;
  g_second_exits = use == Use::kServe;
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  if (use != Use::kServe) return;
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

int received() { return g_received; }
void clear() { g_received = 0; }

void wait() {
  while (g_received == 0 && !g_stop_waiting) sem_wait(&g_arrived);
}

void stop_waiting() {
  g_stop_waiting = true;
  if (g_installed) sem_post(&g_arrived);
}

}  // namespace mettle::signals
