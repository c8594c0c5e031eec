#include "cli/signals.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace mettle::signals {
namespace {

std::atomic<int> g_received{0};
std::atomic<int> g_last{0};
std::atomic<bool> g_second_exits{false};
sem_t g_arrived;

// Only what is safe in a signal handler.
void handle(int number) {
  const int saved = errno;
  g_last = number;
  if (g_received.fetch_add(1) > 0 && g_second_exits) _exit(128 + number);
  sem_post(&g_arrived);
  errno = saved;
}

}  // namespace

void install(Second second) {
  sem_init(&g_arrived, 0, 0);
  g_second_exits = second == Second::kExits;
  struct sigaction action {};
  action.sa_handler = handle;  // no SA_RESTART: a read() of the terminal returns
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int received() { return g_received; }
int last() { return g_last; }
void clear() { g_received = 0; }

void wait() {
  while (g_received == 0) sem_wait(&g_arrived);
}

}  // namespace mettle::signals
