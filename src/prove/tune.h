// Times proved tactics longer than a proof does: per problem and row bucket, in rounds over all candidates, and the
// fastest once more beside the choice that the proof's own times would make; the better of the two is kept. Results lie
// beside the verdicts, by build, device and number of threads. A tuning changes which proved tactic serves, never
// whether an unproved one does: what is not OK in the report at hand is passed over.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "prove/candidates.h"
#include "prove/prover.h"

namespace mettle {

// Of one tactic at one bucket: the median of its samples, and their median distance from it as a part of it, scaled so
// that it is the standard deviation where the distribution is normal.
struct TunedTime {
  std::string backend, tactic;
  double us = 0, noise = 0;
  int samples = 0;
};

enum class TuneOutcome : uint8_t {
  kSame,    // the fastest is what the proof's times choose
  kFaster,  // another one was faster when both were measured again
  kKept     // another one looked faster and did not hold when both were measured again
};
std::string_view name_of(TuneOutcome outcome);  // same faster kept

struct TunedUnit {
  std::string op, problem;
  size_t bucket = 0;
  std::vector<TunedTime> times;  // in the order of the report
  TunedTime chosen, untuned;     // of the comparison of the two; kSame: the same
  TuneOutcome outcome = TuneOutcome::kSame;
};

struct TuneOptions {
  Device device;
  int threads = 1;
  double seconds = 120;                 // for measuring, proofs not counted
  std::vector<std::string> child_argv;  // default: /proc/self/exe tune --child
  std::string cache_folder;             // as in ProveOptions; "none": nothing is read or kept
  bool retune = false;                  // ignore kept results
  std::string only_op;
  int silence_ms = 60'000;
  std::function<void(size_t done, size_t total, const std::string& what)> on_progress;
  std::function<void()> on_work;  // called while a child measures: for clocks and power
};

struct TuneResult {
  std::vector<TunedUnit> units;  // in the order problems x buckets; those of the model that are done
  size_t wanted = 0, kept = 0;   // units in all; taken from earlier runs
  bool out_of_time = false;
  std::vector<std::string> dropped;     // tactics that ended the child while they were timed, and how
  std::vector<std::string> refused;     // problems for which nothing is proved
  std::vector<std::string> from_cache;  // problems whose times flatter (ProofEntry::timed_from_cache); not kept
};

// `report` holds the proofs and their own times (ProveOptions::tuned false). `imported`: what another run found; each
// of its choices that differs from the untuned one is measured against that here before it is kept, nothing else is.
TuneResult tune(std::span<const AnyProblem> problems, const ProofReport& report, const TuneOptions& options,
                const std::vector<TunedUnit>* imported = nullptr);
int tune_child(const Candidates& candidates);
int tune_child();

// Puts kept times in place of the proof's, so that choose() takes what was chosen here.
void apply_tuning(const std::string& cache_folder, int threads, ProofReport& report);
// The same of units at hand, none of TuneResult::from_cache: an op's problem with all of them has no time that
// flatters.
void apply_units(std::span<const TunedUnit> units, ProofReport& report);

// Which of two serves: the other one only when it is faster by more than what the noise of both leaves open and by one
// part in a hundred, so that a second run decides alike.
bool clearly_faster(const TunedTime& other, const TunedTime& untuned);

}  // namespace mettle
