// From the tables of a plan to its cells.
#pragma once
#include <string>
#include <vector>

#include "sweep/plan.h"

namespace mettle::sweep {

struct ExplicitCell {
  std::string name;
  ServerPlan server;              // of [server], with what the cell says otherwise
  std::vector<std::string> args;  // after its command
};

// Fills plan.cells: the explicit ones, then the product of plan.axes; the server alone when there are neither. Fails
// with kInvalidRequest when two have one name or there are more than kMostCells.
void make_cells(Plan& plan, const std::vector<ExplicitCell>& cells);

// The words to run: placeholders replaced, a relative path of the model resolved. {name} of other names stays.
struct Places {
  int port = 0;
  std::string out;     // the cell's folder
  std::string mettle;  // this program
};
std::vector<std::string> words_of(const Plan& plan, const ServerPlan& server, const Places& places);
Pairs environment_of(const Plan& plan, const ServerPlan& server, const Places& places);
std::string model_of(const Plan& plan, const ServerPlan& server);

// Of "log: REGEX"; empty when readiness is a path.
std::string ready_pattern(const ServerPlan& server);

}  // namespace mettle::sweep
