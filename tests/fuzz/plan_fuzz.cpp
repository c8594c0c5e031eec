// Arbitrary bytes as the plan of a sweep: what is read keeps to the limits, and what decides a result can be told of
// every cell.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "sweep/matrix.h"
#include "sweep/plan.h"

namespace {

using namespace mettle::sweep;

void check(bool holds) {
  if (!holds) std::abort();
}

void check_cell(const Plan& plan, const Cell& cell) {
  check(!cell.name.empty() && !cell.server.command.empty() && !cell.server.command[0].empty());
  // The folder's name is one part of a path, whatever the cell's name is.
  check(cell.folder.size() < 64 && cell.folder.find_first_of("/\\\n\0") == std::string::npos && cell.folder[0] != '.');
  check(nlohmann::json::accept(identity(plan, cell)));
  const Places places = {8000, "/out", "/bin/mettle"};
  check(words_of(plan, cell.server, places).size() == cell.server.command.size());
  for (const auto& [name, value] : environment_of(plan, cell.server, places))
    check(!name.empty() && name.find('=') == std::string::npos && value.find('\0') == std::string::npos);
  for (const Axis& axis : plan.axes) value_of(cell, axis.name);
  for (const SkipRule& rule : plan.skips) value_of(cell, rule.axis);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const Plan plan = parse_plan(std::string(reinterpret_cast<const char*>(data), size), "plan.toml");
    check(!plan.cells.empty() && plan.cells.size() <= kMostCells);
    check(!plan.name.empty() && plan.name.find('/') == std::string::npos);
    for (const int concurrency : plan.bench.concurrency) check(concurrency >= 1 && concurrency <= 1024);
    // The first and the last: a plan may have hundreds that differ in one word.
    for (const Cell* cell : {&plan.cells.front(), &plan.cells.back()}) check_cell(plan, *cell);
  } catch (const mettle::Error& error) {
    check(error.code == mettle::Code::kInvalidRequest && !error.message.empty());
  }
  return 0;
}
