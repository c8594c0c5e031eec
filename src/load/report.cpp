#include "load/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/terminal.h"

namespace mettle {
namespace {

// What stands in one column.
struct Column {
  explicit Column(const LoadReport& report, const LoadLevel& level)
      : level(level), pooled(together(level.repeats)), f(figures_of(pooled)) {
    if (report.goals.any()) goodput = goodput_of(pooled, report.goals);
    for (const LoadRun& run : level.repeats) each.push_back(figures_of(run));
  }
  const LoadLevel& level;
  LoadRun pooled;
  LoadFigures f;
  double goodput = 0;
  std::vector<LoadFigures> each;
};

std::string number(double value) { return fmt::format("{:.2f}", value); }

class Rows {
 public:
  Rows(const std::vector<Column>& columns, std::vector<ReportRow>& rows) : columns_(columns), rows_(rows) {}

  void section(const char* name) { rows_.push_back({name, {}}); }
  template <class F>
  void count(const char* name, F&& value) {
    ReportRow row{name, {}};
    for (const Column& c : columns_) row.values.push_back(fmt::format("{}", value(c)));
    rows_.push_back(std::move(row));
  }
  // With the confidence interval of the mean over the repeats, where there are any.
  template <class F>
  void figure(const char* name, F&& value) {
    ReportRow row{name, {}};
    for (const Column& c : columns_) {
      std::string text = number(value(c.f));
      if (c.each.size() > 1) {
        std::vector<double> values;
        for (const LoadFigures& f : c.each) values.push_back(value(f));
        text += " ± " + number(confidence95(values));
      }
      row.values.push_back(std::move(text));
    }
    rows_.push_back(std::move(row));
  }
  void times(const char* header, const char* name, Quantiles LoadFigures::*of) {
    section(header);
    const auto one = [&](const char* word, double Quantiles::*q) {
      figure(fmt::format("{} {} (ms):", word, name).c_str(), [=](const LoadFigures& f) { return f.*of.*q; });
    };
    one("Mean", &Quantiles::mean);
    one("Median", &Quantiles::median);
    one("P90", &Quantiles::p90);
    one("P95", &Quantiles::p95);
    one("P99", &Quantiles::p99);
  }

 private:
  const std::vector<Column>& columns_;
  std::vector<ReportRow>& rows_;
};

std::string bar(double share, int width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = std::clamp(static_cast<int>(std::lround(share * width * 8)), 0, width * 8);
  std::string out;
  for (int i = 0; i < eighths / 8; ++i) out += "█";
  return out + kEighths[eighths % 8];
}

// A table of one stream and many, and bars.
std::string levels_text(const std::vector<Column>& columns) {
  Table table({"in flight", "req/s", "output tok/s", "tok/s a stream", "TTFT p50 ms", "p99", "TPOT p50 ms", "p99",
               "E2E p50 ms", "failed"});
  double most = 0;
  size_t name = 0;
  for (const Column& c : columns) {
    const LoadFigures& f = c.f;
    table.add({c.level.name, number(f.request_throughput), number(f.output_throughput),
               f.tpot_ms.median > 0 ? number(1e3 / f.tpot_ms.median) : "-", number(f.ttft_ms.median),
               number(f.ttft_ms.p99), number(f.tpot_ms.median), number(f.tpot_ms.p99), number(f.e2e_ms.median),
               fmt::format("{}", f.failed)});
    most = std::max(most, f.output_throughput);
    name = std::max(name, c.level.name.size());
  }
  std::string text = table.text({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) + "\nOutput token throughput (tok/s)\n";
  for (const Column& c : columns)
    text += fmt::format("{:>{}}  {} {:.1f}\n", c.level.name, name, bar(most > 0 ? c.f.output_throughput / most : 0, 40),
                        c.f.output_throughput);
  return text;
}

std::vector<Column> columns_of(const LoadReport& report) {
  std::vector<Column> columns;
  for (const LoadLevel& level : report.levels) columns.emplace_back(report, level);
  return columns;
}

std::vector<ReportRow> rows_of(const LoadReport& report, const std::vector<Column>& columns) {
  std::vector<ReportRow> out;
  Rows rows(columns, out);
  const auto any = [&](auto&& test) { return std::any_of(columns.begin(), columns.end(), test); };
  rows.count("Backend:", [&](const Column&) { return report.backend; });
  rows.count("Traffic request rate:",
             [](const Column& c) { return c.level.rate > 0 ? fmt::format("{:g}", c.level.rate) : std::string("inf"); });
  rows.count("Max request concurrency:", [](const Column& c) { return c.level.concurrency; });
  rows.count("Successful requests:", [](const Column& c) { return c.f.completed; });
  rows.count("Failed requests:", [](const Column& c) { return c.f.failed; });
  rows.count("Benchmark duration (s):", [](const Column& c) { return number(c.f.duration_s); });
  rows.count("Total input tokens:", [](const Column& c) { return c.f.total_input; });
  rows.count("Total generated tokens:", [](const Column& c) { return c.f.total_output; });
  if (any([](const Column& c) { return c.level.check.output_compared > 0; }))
    rows.count("Total generated tokens (retokenized):",
               [](const Column& c) { return c.level.check.output_retokenized; });
  rows.figure("Request throughput (req/s):", [](const LoadFigures& f) { return f.request_throughput; });
  if (report.goals.any()) rows.count("Request goodput (req/s):", [](const Column& c) { return number(c.goodput); });
  rows.figure("Input token throughput (tok/s):", [](const LoadFigures& f) { return f.input_throughput; });
  rows.figure("Output token throughput (tok/s):", [](const LoadFigures& f) { return f.output_throughput; });
  rows.count("Peak output token throughput (tok/s):",
             [](const Column& c) { return number(c.f.peak_output_throughput); });
  rows.count("Peak concurrent requests:", [](const Column& c) { return c.f.peak_concurrency; });
  rows.figure("Total token throughput (tok/s):", [](const LoadFigures& f) { return f.total_throughput; });
  rows.figure("Concurrency:", [](const LoadFigures& f) { return f.mean_concurrency; });
  rows.times("End-to-End Latency", "E2E Latency", &LoadFigures::e2e_ms);
  rows.times("Time to First Token", "TTFT", &LoadFigures::ttft_ms);
  rows.times("Time per Output Token (excl. 1st token)", "TPOT", &LoadFigures::tpot_ms);
  rows.times("Inter-Token Latency", "ITL", &LoadFigures::itl_ms);
  rows.figure("Max ITL (ms):", [](const LoadFigures& f) { return f.itl_ms.max; });
  return out;
}

// How the counts agree, in words.
std::string check_text(const LoadReport& report, const std::vector<Column>& columns) {
  std::string text;
  for (const Column& c : columns) {
    const std::string at = columns.size() > 1 ? " at " + c.level.name : "";
    if (c.f.without_usage > 0)
      text += fmt::format("{} of {} answers{} came without usage: their tokens are pieces of the stream\n",
                          c.f.without_usage, c.f.completed, at);
    const TokenCheck& k = c.level.check;
    if (k.output_over_asked > 0)
      text += fmt::format("{} of {} answers{} have more tokens by the server's usage than were asked for\n",
                          k.output_over_asked, c.f.completed, at);
    if (k.input_compared > 0)
      text += fmt::format("{} counts {} of {} prompts{} differently than the server\n", report.tokenizer,
                          k.input_differ, k.input_compared, at);
    if (k.output_compared > 0)
      text += fmt::format("{} of {} answers{} encode to another number of tokens than the server made\n",
                          k.output_differ, k.output_compared, at);
    if (c.pooled.held_back > 0)
      text += fmt::format("{} requests{} were held back: {} were in flight already\n", c.pooled.held_back, at,
                          c.level.concurrency);
  }
  return text;
}

}  // namespace

LoadRun together(const std::vector<LoadRun>& repeats) {
  LoadRun all;
  double cpu_seconds = 0;
  for (const LoadRun& run : repeats) {
    for (LoadRequest request : run.requests) {
      request.start_s += all.seconds;
      all.requests.push_back(std::move(request));
    }
    all.seconds += run.seconds;
    cpu_seconds += run.client_cpu * run.seconds;
    all.held_back += run.held_back;
    all.client_lag_ms = std::max(all.client_lag_ms, run.client_lag_ms);
    all.late_ms = std::max(all.late_ms, run.late_ms);
    all.client_cores = run.client_cores;
    all.model = run.model;
    all.url = run.url;
  }
  if (all.seconds > 0) all.client_cpu = cpu_seconds / all.seconds;
  return all;
}

std::vector<ReportRow> report_rows(const LoadReport& report) { return rows_of(report, columns_of(report)); }

std::vector<ErrorKind> report_errors(const LoadReport& report) {
  std::vector<ErrorKind> errors;
  for (const LoadLevel& level : report.levels) {
    const auto begin = static_cast<std::ptrdiff_t>(errors.size());
    for (const LoadRun& run : level.repeats)
      for (const LoadRequest& request : run.requests) {
        if (request.error.empty()) continue;
        const auto found = std::find_if(errors.begin() + begin, errors.end(),
                                        [&](const ErrorKind& e) { return e.kind == request.error_kind; });
        if (found != errors.end())
          ++found->count;
        else
          errors.push_back({level.name, request.error_kind, request.error, 1});
      }
  }
  return errors;
}

std::string report_text(const LoadReport& report, bool colour) {
  const std::vector<Column> columns = columns_of(report);
  std::string text;
  if (columns.size() > 1) text += levels_text(columns) + "\n";
  constexpr int kName = 40;
  size_t width = 10;
  const std::vector<ReportRow> rows = rows_of(report, columns);
  for (const ReportRow& row : rows)
    for (const std::string& value : row.values) width = std::max(width, value.size());
  const int line = std::max<int>(50, kName + 1 + static_cast<int>((width + 1) * columns.size()) - 1);
  text += fmt::format("{:=^{}}\n", " Serving Benchmark Result ", line);
  for (const ReportRow& row : rows) {
    if (row.values.empty()) {
      text += fmt::format("{:-^{}}\n", row.name, line);
      continue;
    }
    text += fmt::format("{:<{}}", row.name, kName);
    for (const std::string& value : row.values) text += fmt::format(" {:<{}}", value, width);
    while (text.ends_with(' ')) text.pop_back();
    text += '\n';
  }
  text += std::string(static_cast<size_t>(line), '=') + "\n" + check_text(report, columns);
  const std::vector<ErrorKind> errors = report_errors(report);
  if (errors.empty()) return text;
  Table table({"errors at", "kind", "requests", "the first"});
  for (const ErrorKind& e : errors) table.add({e.level, e.kind, fmt::format("{}", e.count), e.first});
  return text + "\n" + paint(Colour::kRed, table.text({2}), colour);
}

}  // namespace mettle
