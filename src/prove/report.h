// What came of the proofs, for people and machines: a table, JSON, and a page that stands alone.
#pragma once
#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "prove/ceiling.h"
#include "prove/prover.h"

namespace mettle {

// One line per entry, aligned; with `colour` the verdicts are painted.
std::string report_table(const ProofReport& report, bool colour);
std::string report_json(const ProofReport& report);

// What serves a problem at each row bucket; "" where nothing may.
struct ServingChoice {
  std::string problem;
  std::array<std::string, kRowBuckets.size()> backend, tactic;
  bool operator==(const ServingChoice&) const = default;
};
// As choose() answers it, one for each problem of the report, in its order.
std::vector<ServingChoice> serving_choices(const ProofReport& report, std::span<const AnyProblem> problems);

struct ReportPage {
  ProofReport report;
  std::vector<ServingChoice> choices;
  std::string program, model, architecture;  // "mettle 1.0"; what a model's files say is not trusted
  std::string made;                          // date and time
  double seconds = 0;
  int threads = 1;
  std::vector<AnyProblem> problems;  // what the times are held against the ceiling by
  std::optional<Ceiling> ceiling;    // of this machine
};
// One HTML file without scripts, that loads nothing: every text escaped, order as in the report.
std::string report_html(const ReportPage& page);

}  // namespace mettle
