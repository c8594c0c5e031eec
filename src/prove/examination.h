// What one (backend, tactic) has shown so far: the first failure, the worst element, how much was compared. A failure
// ends the examination by exception inside this folder, so a case reads as a list of demands.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "prove/guarded.h"
#include "prove/judge.h"
#include "prove/prover.h"

namespace mettle {

struct ProofFailure {
  Verdict verdict;
};

class Examination {
 public:
  explicit Examination(ProofEntry& entry) : entry_(entry) {}

  // Names the case that is running; part of every failure's sentence.
  void begin(std::string kind);
  // Fails with this verdict, its sentence after the name of the case.
  [[noreturn]] void fail_with(Verdict verdict) const;
  void demand(const Verdict& verdict) const {
    if (!verdict.ok()) fail_with(verdict);
  }

  // got [rows of `expected`, cols]; row_names maps its rows to rows of the launch (empty: the same).
  void judge_elements(const std::string& what, const Expected& expected, std::span<const float> got,
                      std::span<const int> row_names = {});
  void judge_exact(const std::string& what, const Expected& expected, std::span<const float> got,
                   std::span<const int> row_names = {});
  // Statistics of an output over all generic cases; judged at the end.
  void collect(const std::string& what, const Expected& expected, std::span<const float> got);
  void judge_selection(std::span<const double> scores, std::span<const double> sigma, int64_t rows, int64_t n,
                       std::span<const int32_t> ids, int64_t k, std::span<const int> row_names);
  // Bytes of two runs; fails with the code at the first difference.
  void judge_same(VerdictCode code, const std::string& what, const std::vector<uint8_t>& first,
                  const std::vector<uint8_t>& second, int64_t row_bytes, int64_t row_step = 1) const;
  // Two rows of one output that have the same inputs; fails with kRowDependent unless they have the same bits.
  void judge_twins(const std::string& what, std::span<const uint8_t> all, int64_t row_bytes, int64_t row,
                   int64_t twin) const;
  void count(uint64_t comparisons) { entry_.comparisons += comparisons; }

  // Group statistics, and that anything was compared at all.
  void finish();

 private:
  void record(const judge::ElementResult& result, const std::string& what, const char* rule, uint64_t compared,
              std::span<const int> row_names);

  ProofEntry& entry_;
  std::string kind_;
  std::map<std::string, judge::Groups> groups_;
};

}  // namespace mettle
