// Figures of one or more levels of load as people and programs read them. Names of fields are those that
// sglang.bench_serving and vllm bench serve print and save; docs/benchmarks.md lists them.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "load/load.h"

namespace mettle {

struct TokenCheck {  // the server's counts against a local tokenizer; nothing compared: no tokenizer, or no usage
  int input_compared = 0, input_differ = 0;
  int output_compared = 0, output_differ = 0;  // the text encoded again: an answer may have been made of other tokens
  int64_t output_retokenized = 0;
  int output_over_asked = 0;  // the usage names more tokens than the request allowed: needs no tokenizer
};

struct LoadLevel {
  std::string name;  // of its column: "1", "64", "5 req/s"
  int concurrency = 0;
  double rate = 0, burstiness = 1;  // rate 0: closed loop
  std::vector<LoadRun> repeats;
  TokenCheck check;
};

struct LoadReport {
  std::string url, model, backend, dataset, tokenizer, date;  // backend: chat or completions
  uint64_t seed = 0;
  Goals goals;
  std::vector<LoadLevel> levels;
};

// All repeats of a level one after the other.
LoadRun together(const std::vector<LoadRun>& repeats);

std::string report_text(const LoadReport& report, bool colour);
// One JSON object a line for each level. `details` adds times and texts of each request.
std::string report_json(const LoadReport& report, bool details);
// One page that needs nothing else: tables, plots, light and dark.
std::string report_html(const LoadReport& report);

// Rows of the table: what both tools print, by their names. Sections have no values.
struct ReportRow {
  std::string name;
  std::vector<std::string> values;  // one for each level
};
std::vector<ReportRow> report_rows(const LoadReport& report);
struct ErrorKind {
  std::string level, kind, first;  // the first sentence of that kind
  int count = 0;
};
std::vector<ErrorKind> report_errors(const LoadReport& report);

}  // namespace mettle
