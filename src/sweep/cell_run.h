// One cell from start to end: free port, launch, ready, canary, figures, stop, and proof that nothing is left.
#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sweep/plan.h"
#include "sweep/processes.h"
#include "sweep/result.h"

namespace mettle::sweep {

struct CellContext {
  const Plan& plan;
  Family& family;
  std::string program;                          // {mettle}
  std::vector<std::string> references;          // of the canary
  const std::atomic<bool>* stop = nullptr;      // set: the cell ends, cleanly, and has no result
  const std::atomic<bool>* hurry = nullptr;     // set: no waiting for a graceful end
  std::function<void(const std::string&)> say;  // what happens now, for people
};

// Runs it in `folder`, which is there and empty of earlier results. Nothing when it was stopped before its end.
std::optional<CellResult> run_cell(const Cell& cell, const std::string& folder, const CellContext& context);

}  // namespace mettle::sweep
