#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>

#include "base/html.h"
#include "sweep/detectors.h"
#include "sweep/plot.h"
#include "sweep/report.h"

namespace mettle::sweep {
namespace {

// Colours: eight that stay apart for the colour-blind, one set for each of light and dark.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--text:#1c1e21;--soft:#5f6670;--rule:#e3e5e8;--good:#15803d;--bad:#b42318;--skip:#8a6d1f;--code:#f3f4f6;
--s0:#0f6fc5;--s1:#c2410c;--s2:#0f8a5f;--s3:#a21caf;--s4:#92700c;--s5:#0e7490;--s6:#be123c;--s7:#4d5561}
@media(prefers-color-scheme:dark){:root{--bg:#121417;--card:#1a1d21;--text:#e6e8eb;--soft:#9aa3ad;--rule:#2c3137;--good:#4ade80;--bad:#ff8a7a;--skip:#e2c46b;--code:#22262b;
--s0:#6cb6ff;--s1:#ff9d5c;--s2:#4fd1a1;--s3:#e58cf2;--s4:#e0c15a;--s5:#5fd0e4;--s6:#ff8097;--s7:#b3bac2}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:24px 16px 64px;background:var(--bg);color:var(--text);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.6rem;margin:0 0 4px}h2{font-size:1.15rem;margin:36px 0 12px}.soft{color:var(--soft)}
.winner{border:1px solid var(--rule);border-left:5px solid var(--good);background:var(--card);border-radius:8px;padding:14px 18px;margin:20px 0}
.winner b{font-size:1.1rem}.none{border-left-color:var(--bad)}
.wide{overflow-x:auto;border:1px solid var(--rule);border-radius:8px;background:var(--card)}
table{border-collapse:collapse;width:100%;font-size:.92rem}th{text-align:left;color:var(--soft);font-weight:600;white-space:nowrap}
th,td{padding:8px 12px;border-bottom:1px solid var(--rule);vertical-align:top}tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}td.what{min-width:22rem;color:var(--soft)}td.cell{min-width:9rem}
.works,.winner-row{color:var(--good)}.failed{color:var(--bad)}.skipped{color:var(--skip)}.waits,.runs{color:var(--soft)}
.outcome{font-weight:600;white-space:nowrap}.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px}
figure{margin:0;border:1px solid var(--rule);border-radius:8px;background:var(--card);padding:14px 14px 8px}figcaption{font-weight:600;margin-bottom:6px}
svg{width:100%;height:auto;display:block}.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}.label{fill:var(--soft);font-size:13px}
.s0.line{stroke:var(--s0)}.s0.dot{fill:var(--s0)}.s1.line{stroke:var(--s1)}.s1.dot{fill:var(--s1)}.s2.line{stroke:var(--s2)}.s2.dot{fill:var(--s2)}.s3.line{stroke:var(--s3)}.s3.dot{fill:var(--s3)}.s4.line{stroke:var(--s4)}.s4.dot{fill:var(--s4)}.s5.line{stroke:var(--s5)}.s5.dot{fill:var(--s5)}.s6.line{stroke:var(--s6)}.s6.dot{fill:var(--s6)}.s7.line{stroke:var(--s7)}.s7.dot{fill:var(--s7)}
.line{fill:none;stroke-width:2.5;stroke-linejoin:round}.dot{stroke:var(--card);stroke-width:1.5}
.key{display:flex;flex-wrap:wrap;gap:4px 18px;margin:10px 2px 0;font-size:.9rem}.key i{display:inline-block;width:14px;height:4px;border-radius:2px;margin-right:7px;vertical-align:middle}
details{border:1px solid var(--rule);border-radius:8px;background:var(--card);margin:8px 0;padding:0 16px}summary{cursor:pointer;padding:12px 0;font-weight:600;overflow-wrap:anywhere}
details>*:last-child{margin-bottom:16px}pre{background:var(--code);border-radius:6px;padding:10px 12px;overflow-x:auto;font-size:.84rem;white-space:pre-wrap;overflow-wrap:anywhere}
ul{padding-left:1.2rem;overflow-wrap:anywhere}p{overflow-wrap:anywhere}
@media(max-width:640px){body{font-size:15px}th,td{padding:7px 9px}
.cells,.cells tbody,.cells tr{display:block}.cells tr{padding:10px 12px;border-bottom:1px solid var(--rule)}.cells tr:first-child{display:none}
.cells td{display:inline-block;padding:0 12px 0 0;border:0}.cells td.n{min-width:0}.cells td.what{display:block;min-width:0;padding-top:4px;overflow-wrap:anywhere}}
)css";

std::string outcome_class(const Row& row, bool winner) {
  if (row.state == RowState::kRunning) return "runs";
  if (row.state == RowState::kWaiting) return "waits";
  return winner ? "winner-row" : std::string(name_of(row.result.outcome));
}

std::string table_html(const Plan& plan, const std::vector<Row>& rows, int winner) {
  const auto table = report_table(plan, rows, winner);
  std::string out = "<div class=\"wide\"><table class=\"cells\">\n<tr>";
  const auto number = [](size_t column) { return column == 0 || column == 4 || column == 5; };
  for (size_t c = 0; c < table[0].size(); ++c)
    out += fmt::format("<th{}>{}</th>", number(c) ? " class=\"n\"" : "", html_text(table[0][c]));
  out += "</tr>\n";
  for (size_t r = 1; r < table.size(); ++r) {
    out += "<tr>";
    for (size_t c = 0; c < table[r].size(); ++c) {
      std::string style = number(c) ? "n" : "";
      if (c == 1) style = "cell";
      if (c == 2) style = "outcome " + outcome_class(rows[r - 1], static_cast<int>(r) - 1 == winner);
      if (c == 6) style = "what";
      const std::string text = c == 1 ? fmt::format("<a href=\"#c{}\" style=\"color:inherit\">{}</a>",
                                                    rows[r - 1].cell->number, html_text(table[r][c]))
                                      : html_text(table[r][c], 600);
      out += fmt::format("<td{}>{}</td>", style.empty() ? "" : fmt::format(" class=\"{}\"", style), text);
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string figure_html(const std::string& title, const std::string& y_label, const std::vector<const Row*>& measured,
                        const std::function<double(const BenchPoint&)>& value) {
  Plot plot{title, "concurrency", y_label, {}};
  std::string key;
  for (size_t i = 0; i < measured.size(); ++i) {
    Series series{measured[i]->cell->name, static_cast<int>(i), {}};
    for (const BenchPoint& p : measured[i]->result.bench)
      if (value(p) > 0) series.points.emplace_back(p.concurrency, value(p));
    if (series.points.empty()) continue;
    key += fmt::format("<span><i style=\"background:var(--s{})\"></i>{}</span>", i % 8, html_text(series.name));
    plot.series.push_back(std::move(series));
  }
  const std::string drawing = svg(plot);
  return drawing.empty() ? ""
                         : fmt::format("<figure><figcaption>{}</figcaption>\n{}<div class=\"key\">{}</div></figure>\n",
                                       html_text(title), drawing, key);
}

std::string plots_html(const std::vector<Row>& rows) {
  std::vector<const Row*> measured;
  for (const Row& row : rows)
    if (row.state == RowState::kDone && !row.result.bench.empty()) measured.push_back(&row);
  if (measured.empty()) return "";
  return "<h2>Figures</h2>\n<div class=\"plots\">\n" +
         figure_html("Output throughput", "tokens/s", measured,
                     [](const BenchPoint& p) { return p.output_throughput; }) +
         figure_html("Time per output token, median", "ms", measured,
                     [](const BenchPoint& p) { return p.tpot_p50_ms; }) +
         figure_html("Time to the first token, median", "ms", measured,
                     [](const BenchPoint& p) { return p.ttft_p50_ms; }) +
         figure_html("Power of the GPUs", "W", measured, [](const BenchPoint& p) { return p.power_w; }) + "</div>\n";
}

std::string list_html(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string out = fmt::format("<p class=\"soft\">{}</p><ul>", title);
  for (const std::string& line : lines) out += fmt::format("<li>{}</li>", html_text(line));
  return out + "</ul>\n";
}

std::string cell_html(const Row& row, bool winner) {
  const CellResult& r = row.result;
  std::string out =
      fmt::format("<details id=\"c{}\"{}><summary><span class=\"{}\">{}</span> {} {}</summary>\n", row.cell->number,
                  winner ? " open" : "", outcome_class(row, winner),
                  winner ? "winner" : std::string(name_of(r.outcome)), row.cell->number, html_text(row.cell->name));
  if (!r.sentence.empty()) out += fmt::format("<p><b>{}</b> {}</p>\n", html_text(r.cause), html_text(r.sentence));
  if (!r.evidence.empty())
    out += fmt::format("<pre>{}</pre>\n", html_text(fmt::format("{}", fmt::join(r.evidence, "\n"))));
  out += list_html("Try", r.remedy) + list_html("Left behind, ended and removed", r.leftovers) +
         list_html("Notes", r.notes);
  if (!r.answers.empty()) {
    out += "<div class=\"wide\"><table><tr><th>prompt</th><th>answer</th><th>finding</th></tr>\n";
    for (const KeptAnswer& a : r.answers)
      out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", html_text(in_quotes(a.prompt, 80)),
                         html_text(in_quotes(a.text, 120)), html_text(a.finding));
    out += "</table></div>\n";
  }
  if (!r.bench.empty()) {
    out +=
        "<p></p><div class=\"wide\"><table><tr><th class=\"n\">concurrency</th><th class=\"n\">requests</th>"
        "<th class=\"n\">output tok/s</th><th class=\"n\">TTFT p50 / p99 ms</th><th class=\"n\">TPOT p50 / p99 ms</th>"
        "<th class=\"n\">E2E p50 / p99 ms</th><th class=\"n\">power</th></tr>\n";
    for (const BenchPoint& p : r.bench)
      out += fmt::format(
          "<tr><td class=\"n\">{}</td><td class=\"n\">{}{}</td><td class=\"n\">{:.1f}</td><td class=\"n\">{:.1f} / "
          "{:.1f}</td><td class=\"n\">{:.1f} / {:.1f}</td><td class=\"n\">{:.0f} / {:.0f}</td><td "
          "class=\"n\">{}</td></tr>\n",
          p.concurrency, p.completed, p.failed > 0 ? fmt::format(" + {} failed", p.failed) : "", p.output_throughput,
          p.ttft_p50_ms, p.ttft_p99_ms, p.tpot_p50_ms, p.tpot_p99_ms, p.e2e_p50_ms, p.e2e_p99_ms,
          p.power_w > 0 ? fmt::format("{:.0f} of {:.0f} W, {:.0f} MHz", p.power_w, p.power_limit_w, p.sm_mhz) : "-");
    out += "</table></div>\n";
  }
  if (!r.command.empty()) {
    std::string words;
    for (const auto& [name, value] : r.env) words += fmt::format("{}={} ", name, shell_words({value}));
    out += fmt::format("<pre>{}</pre>\n<p class=\"soft\"><a href=\"cells/{}/log.txt\">log</a>, {} bytes</p>\n",
                       html_text(words + shell_words(r.command), std::string::npos), html_text(row.cell->folder),
                       r.log_bytes);
  }
  return out + "</details>\n";
}

}  // namespace

std::string report_html(const Plan& plan, const std::vector<Row>& rows, int winner) {
  size_t works = 0, failed = 0, skipped = 0;
  for (const Row& row : rows) {
    if (row.state != RowState::kDone) continue;
    works += row.result.outcome == Outcome::kWorks;
    failed += row.result.outcome == Outcome::kFailed;
    skipped += row.result.outcome == Outcome::kSkipped;
  }
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>Sweep {}</title><style>{}</style></head><body>\n"
      "<h1>Sweep {}</h1>\n<div class=\"soft\">{} cells: {} work, {} failed, {} skipped, {} not run{}</div>\n",
      html_text(plan.name), kStyle, html_text(plan.name), rows.size(), works, failed, skipped,
      rows.size() - works - failed - skipped, plan.device.empty() ? "" : ", device " + html_text(plan.device));
  if (winner >= 0) {
    const Row& row = rows[static_cast<size_t>(winner)];
    out += fmt::format(
        "<div class=\"winner\">Winner<br><b>{}</b><br>{}<br><span class=\"soft\">command, environment, "
        "systemd unit and replay script: recipe/</span></div>\n",
        html_text(row.cell->name), html_text(goal_text(plan, row.result)));
  } else {
    out += "<div class=\"winner none\"><b>No cell works</b></div>\n";
  }
  out += table_html(plan, rows, winner) + plots_html(rows) + "<h2>Cells</h2>\n";
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].state == RowState::kDone) out += cell_html(rows[i], static_cast<int>(i) == winner);
  return out + "</body></html>\n";
}

}  // namespace mettle::sweep
