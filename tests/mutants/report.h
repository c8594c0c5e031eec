// What came of the run, counted and shown.
#pragma once
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "planted.h"
#include "prove/prover.h"

namespace mettle::mutants {

struct Result {  // of one fault at one geometry
  std::string op, name, geometry;
  Verdict verdict;
  double error = 0;        // worst element or selection in sigmas, of the launch that convicts
  double group_error = 0;  // worst group statistic in parts of its limit
  bool naive = false;      // the naive check passes it
  bool caught() const { return !verdict.ok() && !info_of(verdict.code).refusal; }
  // element, exact, groups; else the code in words: selection, memory, rows, ...
  std::string rule() const;
  // How far beyond the line: 1 is the line; infinite where a rule knows only right and wrong.
  double ratio() const;
};

struct HealthyResult {
  std::string op, backend, tactic, geometry;
  uint64_t seed = 0;
  Verdict verdict;
  double error = 0, group_error = 0;
  bool passed = false;
};

struct Score {
  std::vector<Result> results;
  std::vector<HealthyResult> healthy;

  size_t faults() const;  // each counted once, whatever the geometries
  size_t caught() const;  // at every geometry
  size_t naive() const;   // faults that the naive check passes at every geometry
  size_t false_alarms() const;
  bool hard_to_see() const { return 2 * naive() >= faults(); }  // at least half pass the naive check
  bool all_well() const { return caught() == faults() && false_alarms() == 0; }
};

// Why so many faults of each op are too few; empty when they are enough.
std::string missing_faults(const std::map<std::string, size_t>& of_op);

// One line per fault, the sums, and as the last line `caught N of N, false alarms 0`.
void print(const Score& score, bool each);
// The table of docs/proofs.md: per op the distance of healthy backends and of the weakest fault from the line, and
// which rules convict how many.
std::string markdown(const Score& score);
// Every fault with its rule and distance, every healthy proof with its own.
std::string json(const Score& score);

}  // namespace mettle::mutants
