// Proves backends: every (problem, backend, tactic) is run in a child process against the float64 oracle and the proved
// reference, on cases of the problem's own shapes; then timed. Results are kept on disk by build, device and problem.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ops/dispatch.h"
#include "ops/problem.h"

namespace mettle {

struct ProofEntry {
  std::string op, backend, tactic, problem, numerics;
  Verdict verdict;
  double max_error = 0;      // worst element: sigmas needed to accept it
  double bound = 0;          // sigmas allowed
  double group_error = 0;    // worst group statistic, in parts of its limit
  uint64_t comparisons = 0;  // elements compared; zero is never a pass
  int cases = 0;
  double ms = 0;                                // time of the proof
  bool cached = false;                          // read from the store
  std::array<double, kRowBuckets.size()> us{};  // least time per call at each bucket's row count; 0 = not timed
  bool timed_from_cache = false;  // no room for copies of the weights on the GPU: the times flatter, and are not kept
};

struct ProofReport {
  std::string device, build;
  std::vector<ProofEntry> entries;  // in the order problems x backends x tactics
  Device where;
  const ProofEntry* find(const std::string& problem, std::string_view backend, std::string_view tactic) const;
};

inline constexpr int kSilenceMs = 20'000;

struct ProveOptions {
  Device device;
  int threads = 1;  // team size that serving will use; part of the timing, not of the verdict
  std::vector<std::string>
      child_argv;            // program and arguments that run the child loop; default: /proc/self/exe prove --child
  std::string cache_folder;  // "" = default_cache_folder(); "none" = keep nothing
  bool reprove = false;      // ignore kept verdicts
  bool time = true;          // measure per bucket
  bool tuned = true;         // times of `mettle tune` take the place of those of the proof where there are any
  std::string only_op, only_backend, only_tactic;  // filters; empty = all
  uint64_t seed = 1;                               // of the random cases
  int silence_ms = kSilenceMs;                     // without a sign, then a child is taken for hanging
  // Proofs and timings that are done, of those to be done; the entry whose turn it is. Not called when all is kept.
  std::function<void(size_t done, size_t total, const ProofEntry& current)> on_progress;
};

// Never throws for a failing backend. Fails with kDevice when no child can be started; an unwritable cache folder is
// one warning and no cache.
ProofReport prove(std::span<const AnyProblem> problems, const ProveOptions& options);

// True when every problem has a proved backend and none that supports its problem failed.
bool all_proved(const ProofReport& report);

// One warning per problem and backend that failed, with its first failed tactic: nothing is left out in silence.
void warn_of_failures(const ProofReport& report);

// One warning of all times that flatter.
void warn_of_times(const ProofReport& report);

// Time at a bucket; a bucket that was not timed, because it took too long, is reckoned from the last that was. 0: none.
double us_at(const ProofEntry& entry, size_t bucket);

// Per bucket the fastest proved (backend, tactic); `named` (empty = auto) restricts to one backend, which never falls
// back. Fails with kUnsupported listing every candidate and its verdict when nothing is left. The reference backend is
// chosen only when nothing else is proved, and that is logged loudly. Behind each choice stands what may take over
// while serving: the other proved backends, the reference last.
template <class Problem>
Choices<OpOf<Problem>> choose(const ProofReport& report, const Problem& problem, const std::string& named = {});

// $XDG_CACHE_HOME/mettle, else ~/.cache/mettle.
std::string default_cache_folder();
// Identifies this program's code: a verdict of another build is a miss.
std::string build_id();

// The child's loop: problems on standard input, one JSON line per entry on standard output. Returns the exit code.
int prove_child();

}  // namespace mettle
