#include "sweep/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "sweep/detectors.h"

namespace mettle::sweep {
namespace {

std::string outcome_text(const Row& row, bool winner) {
  if (row.state == RowState::kRunning) return "runs";
  if (row.state == RowState::kWaiting) return "waits";
  if (winner) return "winner";
  return std::string(name_of(row.result.outcome));
}

std::string seconds(double value) { return value > 0 ? fmt::format("{:.1f} s", value) : ""; }

// Text from logs and answers inside a table or list of Markdown.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      out += ' ';
      continue;
    }
    if (c == '|' || c == '`' || c == '*' || c == '_' || c == '<' || c == '[' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// As code: the fence is longer than any run of backticks in it.
std::string code(const std::string& text) {
  size_t longest = 0, run = 0;
  for (const char c : text) longest = std::max(longest, run = c == '`' ? run + 1 : 0);
  const std::string fence(std::max<size_t>(3, longest + 1), '`');
  return fmt::format("{}\n{}\n{}\n", fence, text, fence);
}

std::string cell_text(const Row& row, bool winner) {
  const CellResult& r = row.result;
  std::string out =
      fmt::format("### {} {} ({})\n", row.cell->number, escaped(row.cell->name), outcome_text(row, winner));
  if (row.state != RowState::kDone) return out + "\n";
  if (!r.sentence.empty())
    out += fmt::format("\n**{}**{}: {}\n", escaped(r.cause),
                       r.confidence.empty() ? "" : fmt::format(" ({} confidence)", r.confidence), escaped(r.sentence));
  if (!r.evidence.empty()) out += "\n" + code(fmt::format("{}", fmt::join(r.evidence, "\n")));
  const auto list = [&](const char* title, const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    out += fmt::format("\n{}\n", title);
    for (const std::string& line : lines) out += fmt::format("- {}\n", escaped(line));
  };
  list("Try", r.remedy);
  list("Left behind, ended and removed", r.leftovers);
  list("Notes", r.notes);
  if (!r.answers.empty()) {
    out += "\n| prompt | answer | finding |\n| --- | --- | --- |\n";
    for (const KeptAnswer& a : r.answers)
      out += fmt::format("| {} | {} | {} |\n", escaped(in_quotes(a.prompt)), escaped(in_quotes(a.text)),
                         escaped(a.finding));
  }
  if (!r.bench.empty()) {
    out +=
        "\n| concurrency | requests | output tok/s | TTFT p50 / p99 ms | TPOT p50 / p99 ms | E2E p50 / p99 ms | power "
        "|\n"
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
    for (const BenchPoint& p : r.bench)
      out += fmt::format(
          "| {} | {}{} | {:.1f} | {:.1f} / {:.1f} | {:.1f} / {:.1f} | {:.0f} / {:.0f} | {} |\n", p.concurrency,
          p.completed, p.failed > 0 ? fmt::format(" + {} failed", p.failed) : "", p.output_throughput, p.ttft_p50_ms,
          p.ttft_p99_ms, p.tpot_p50_ms, p.tpot_p99_ms, p.e2e_p50_ms, p.e2e_p99_ms,
          p.power_w > 0 ? fmt::format("{:.0f} of {:.0f} W, {:.0f} MHz", p.power_w, p.power_limit_w, p.sm_mhz) : "-");
  }
  if (!r.command.empty()) {
    std::string environment;
    for (const auto& [name, value] : r.env) environment += fmt::format("{}={} ", name, shell_words({value}));
    out += "\n" + code(environment + shell_words(r.command));
  }
  out += fmt::format("\nLog: `cells/{}/log.txt`, {} bytes.\n\n", row.cell->folder, r.log_bytes);
  return out;
}

}  // namespace

std::vector<std::vector<std::string>> report_table(const Plan& plan, const std::vector<Row>& rows, int winner) {
  std::vector<std::vector<std::string>> table = {{"#", "cell", "outcome", "cause", "ready", "figure", "what"}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const bool done = row.state == RowState::kDone;
    std::string what = done ? row.result.sentence : row.now;
    if (done && what.empty())
      for (const std::string& note : row.result.notes)
        if (what.empty() && !note.starts_with("power and clocks")) what = note;
    table.push_back({std::to_string(row.cell->number), row.cell->name, outcome_text(row, static_cast<int>(i) == winner),
                     done ? row.result.cause : "", done ? seconds(row.result.ready_seconds) : "",
                     done ? goal_text(plan, row.result) : "", what});
  }
  return table;
}

std::string report_markdown(const Plan& plan, const std::vector<Row>& rows, int winner) {
  size_t works = 0, failed = 0, skipped = 0;
  for (const Row& row : rows) {
    if (row.state != RowState::kDone) continue;
    works += row.result.outcome == Outcome::kWorks;
    failed += row.result.outcome == Outcome::kFailed;
    skipped += row.result.outcome == Outcome::kSkipped;
  }
  std::string out =
      fmt::format("# Sweep {}\n\n{} cells: {} work, {} failed, {} skipped, {} not run.\n", escaped(plan.name),
                  rows.size(), works, failed, skipped, rows.size() - works - failed - skipped);
  if (winner >= 0) {
    const Row& row = rows[static_cast<size_t>(winner)];
    out += fmt::format("\n**Winner: {}** ({}). Its command, environment, unit and replay script are in `recipe/`.\n",
                       escaped(row.cell->name), goal_text(plan, row.result));
  } else {
    out += "\nNo cell works.\n";
  }
  out += "\n";
  const std::vector<std::vector<std::string>> table = report_table(plan, rows, winner);
  for (size_t i = 0; i < table.size(); ++i) {
    out += "|";
    for (const std::string& cell : table[i]) out += fmt::format(" {} |", escaped(cell));
    out += i == 0 ? "\n| ---: | --- | --- | --- | ---: | ---: | --- |\n" : "\n";
  }
  out += "\n";
  for (size_t i = 0; i < rows.size(); ++i) out += cell_text(rows[i], static_cast<int>(i) == winner);
  return out;
}

void write_reports(const Plan& plan, const std::vector<Row>& rows, int winner, const std::string& out) {
  write_whole(out + "/report.md", report_markdown(plan, rows, winner));
  write_whole(out + "/report.html", report_html(plan, rows, winner));
  write_recipe(plan, rows, winner, out);
}

}  // namespace mettle::sweep
