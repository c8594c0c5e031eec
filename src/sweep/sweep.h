// A sweep: every cell of a plan, one after the other, in a folder that can be taken up again after a kill.
#pragma once
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sweep/plan.h"
#include "sweep/result.h"

namespace mettle::sweep {

enum class RowState { kWaiting, kRunning, kDone };

struct Row {
  const Cell* cell = nullptr;
  RowState state = RowState::kWaiting;
  bool wanted = true;  // by --only
  bool kept = false;   // from an earlier run of this sweep
  std::string now;     // what a running cell does
  CellResult result;   // of a cell that is done
};

struct Options {
  std::string out;                // folder of the sweep; made when it is not there
  std::string program;            // this program's file
  std::vector<std::string> only;  // names or numbers of cells; empty: all
  bool stop_on_winner = false;
  const std::atomic<bool>* stop = nullptr;                 // set: ends the cell that runs, then returns
  const std::atomic<bool>* hurry = nullptr;                // set: without waiting
  std::function<void(const std::vector<Row>&)> on_change;  // a row changed
  std::function<void(const std::string&)> on_note;         // a sentence for people
};

struct Summary {
  std::vector<Row> rows;
  int winner = -1;  // index of a row, -1: none works
  bool stopped = false;
};

// Fails with kInvalidRequest (plan, cells named, a folder of another sweep) and kDevice. Results are in options.out:
// one folder for each cell, report.md, report.html, recipe/.
Summary run_sweep(const Plan& plan, const Options& options);

// Rows that --dry-run shows: what would run, what would be skipped and why.
std::vector<Row> dry_run(const Plan& plan, const Options& options);

// The best of the rows that work, by the plan's goal; -1: none.
int find_winner(const Plan& plan, const std::vector<Row>& rows);
// The figure that decides, for people: "212.3 tok/s at 8"; "" when nothing was measured.
std::string goal_text(const Plan& plan, const CellResult& result);

}  // namespace mettle::sweep
