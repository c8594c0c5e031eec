// Speed of the log reader and classifier, and the memory they need.
//   diagnose_bench [MEGABYTES=1024]
// Three made-up logs of that size: a serving server, one coloured as on a terminal, and one where every line is an
// error. Each figure is the best of three runs, in processor time of one core, text after text in blocks of one MiB.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "diagnose/diagnose.h"

namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::string repeated(const std::string& lines) {
  std::string block;
  while (block.size() < (size_t{1} << 20)) block += lines;
  return block;
}

void measure(const char* name, const std::string& lines, size_t megabytes) {
  const std::string block = repeated(lines);
  double best = 1e9;
  std::string cause;
  for (int run = 0; run < 3; ++run) {
    mettle::diagnose::Diagnoser d;
    const double start = now();
    for (size_t done = 0; done < megabytes << 20; done += block.size()) d.read_text(block, "log");
    cause = d.finish().cause;
    best = std::min(best, now() - start);
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%-10s %6zu MB  %7.1f MB/s  %s, %ld MiB at most\n", name, megabytes,
              static_cast<double>(megabytes << 20) / 1e6 / best, cause.c_str(), usage.ru_maxrss >> 10);
}

}  // namespace

int main(int argc, char** argv) {
  const size_t megabytes = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1024;
  if (megabytes == 0) return std::fputs("usage: diagnose_bench [MEGABYTES]\n", stderr), 2;
  const std::string serving =
      "INFO:     10.0.3.7:41120 - \"POST /v1/chat/completions HTTP/1.1\" 200 OK\n"
      "INFO 01-12 10:00:10 [loggers.py:161] Engine 000: Avg prompt throughput: 812.4 tokens/s, Avg generation "
      "throughput: "
      "231.8 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 12.1%, Prefix cache hit rate: 41.2%\n"
      "[2026-01-12 10:00:12 TP0] Decode batch, #running-req: 8, #token: 9120, token usage: 0.02, cuda graph: True, gen "
      "throughput (token/s): 231.80, #queue-req: 0,\n"
      "INFO:     10.0.3.1:52110 - \"GET /health HTTP/1.1\" 200 OK\n";
  std::string colour;
  for (const char c : serving) colour += c == '[' ? std::string("\x1b[1;36m[\x1b[0m") : std::string(1, c);
  const std::string errors =
      "(EngineCore_DP0 pid=7120) ERROR 01-12 10:00:10 [core.py:708] Traceback (most recent call last):\n"
      "(EngineCore_DP0 pid=7120) ERROR 01-12 10:00:10 [core.py:708]   File \"/usr/lib/python3/core.py\", line 699, in "
      "run\n"
      "(EngineCore_DP0 pid=7120) ERROR 01-12 10:00:10 [core.py:708] RuntimeError: CUDA error: misaligned address\n";
  measure("serving", serving, megabytes);
  measure("coloured", colour, megabytes);
  measure("errors", errors, std::max<size_t>(1, megabytes / 8));
  return 0;
}
