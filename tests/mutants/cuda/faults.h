// The faults as the program knows them, and the slices of models that they are proved on.
#pragma once
#include <string>
#include <vector>

#include "ops/problem.h"

namespace mettle::planted {

struct Fault {
  int number = 0;  // of mettle_planted(); 0: no fault
  std::string name, op, backend, tactic, slice;
  std::vector<std::string> codes;  // verdicts that fit
  std::string about;               // what it imitates
};
const std::vector<Fault>& faults();

// Real widths where a kernel's loops run and tails that no tile divides; few heads, experts' columns and ids.
struct Slice {
  std::string name;
  AnyProblem problem;
};
const std::vector<Slice>& slices();
const AnyProblem& problem_of(const std::string& slice);  // fails with kInternal when there is none

// Whether a test as it often stands beside a kernel passes the fault: three row counts of typical data, the largest
// difference to the same backend without the fault at most 5 % of its largest value. Prints 1 or 0; for a process of
// its own.
int naive_child(const Fault& fault);

}  // namespace mettle::planted
