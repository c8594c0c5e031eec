#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/html.h"
#include "load/report.h"

namespace mettle {
namespace {

constexpr const char* kStyle = R"css(
:root { --page: #f6f6f3; --card: #fff; --text: #1c1f23; --soft: #626972; --line: #e2e3de; --bad: #b3261e;
  --s0: #0a6b5c; --s1: #2f6fb0; --s2: #7a55b4; --s3: #a8791a; --s4: #b3475f; --s5: #5a6b7a; }
@media (prefers-color-scheme: dark) { :root { --page: #111418; --card: #191d22; --text: #e8eaed; --soft: #9ba3ad;
  --line: #2c323a; --bad: #ff9087; --s0: #55cfb5; --s1: #74b0ef; --s2: #b79af0; --s3: #e0b050; --s4: #ee8ba0;
  --s5: #a9b7c4; } }
* { box-sizing: border-box; }
html { color-scheme: light dark; -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: clamp(1.6rem, 5vw, 2.4rem); line-height: 1.15; margin: 0; letter-spacing: -.02em; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .6rem; }
.facts { color: var(--soft); margin: .6rem 0 0; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem; }
figcaption { font-size: .9rem; color: var(--soft); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .grid { stroke: var(--line); stroke-width: 1; }
.key { display: inline-block; margin-right: .9rem; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .3rem .8rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 11rem; }
td.words { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
thead th { border-bottom: 1px solid var(--line); }
.section th { color: var(--soft); font-weight: 500; padding-top: .9rem; }
.errors { color: var(--bad); }
)css";

constexpr int kColours = 6;

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y
};

// 1, 2 or 5 times a power of ten, so that about four steps reach `most`.
double step_of(double most) {
  const double rough = most / 4, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double m : {1.0, 2.0, 5.0})
    if (m * power >= rough) return m * power;
  return 10 * power;
}

// A plot of lines. x_names: the points stand side by side under these names; else x is a number from 0 on.
std::string plot(const std::string& title, const std::vector<Line>& lines, const std::vector<std::string>& x_names,
                 const std::string& x_unit, bool dots) {
  constexpr double kLeft = 48, kRight = 452, kTop = 12, kBottom = 206;
  double most_x = x_names.empty() ? 0 : std::max<double>(1, static_cast<double>(x_names.size()) - 1), most_y = 0;
  for (const Line& line : lines)
    for (const auto& [x, y] : line.points) {
      if (x_names.empty()) most_x = std::max(most_x, x);
      most_y = std::max(most_y, y);
    }
  if (!(most_x > 0)) most_x = 1;
  if (!(most_y > 0)) most_y = 1;
  const double step_y = step_of(most_y), top = step_y * std::ceil(most_y / step_y - 1e-9);
  const auto px = [&](double x) { return kLeft + x / most_x * (kRight - kLeft); };
  const auto py = [&](double y) { return kBottom - y / top * (kBottom - kTop); };
  std::string svg =
      fmt::format("<figure><svg viewBox=\"0 0 470 240\" role=\"img\" aria-label=\"{}\">", html_text(title));
  for (double y = 0; y <= top * 1.0001; y += step_y)
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text x=\"{:.1f}\" "
        "y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>",
        kLeft, kRight, py(y), py(y), kLeft - 6, py(y) + 4, y);
  if (x_names.empty()) {
    const double step = step_of(most_x);
    for (double x = 0; x <= most_x * 1.0001; x += step)
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:g}</text>", px(x), kBottom + 16, x);
  } else {
    for (size_t i = 0; i < x_names.size(); ++i)
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>", px(static_cast<double>(i)),
                         kBottom + 16, html_text(x_names[i]));
  }
  svg += fmt::format("<text x=\"{:.1f}\" y=\"236\" text-anchor=\"middle\">{}</text>", (kLeft + kRight) / 2,
                     html_text(x_unit));
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string colour = fmt::format("var(--s{})", i % kColours);
    std::string points;
    for (const auto& [x, y] : lines[i].points) points += fmt::format("{:.1f},{:.1f} ", px(x), py(y));
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>", points, colour);
    for (const auto& [x, y] : lines[i].points)
      if (dots) svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>", px(x), py(y), colour);
  }
  svg += "</svg><figcaption>" + html_text(title) + "<br>";
  if (lines.size() > 1)
    for (size_t i = 0; i < lines.size(); ++i)
      svg += fmt::format("<span class=\"key\"><i style=\"background:var(--s{})\"></i>{}</span>", i % kColours,
                         html_text(lines[i].name));
  return svg + "</figcaption></figure>\n";
}

// The share of requests that were done within a time.
Line shares(const std::string& name, const LoadRun& run, double LoadRequest::*time) {
  std::vector<double> values;
  for (const LoadRequest& r : run.requests)
    if (r.error.empty()) values.push_back(r.*time);
  std::sort(values.begin(), values.end());
  Line line{name, {}};
  constexpr size_t kMostPoints = 200;
  const size_t step = values.size() / kMostPoints + 1;
  for (size_t i = 0; i < values.size(); i += step)
    line.points.emplace_back(values[i], 100.0 * static_cast<double>(i + 1) / static_cast<double>(values.size()));
  if (!values.empty()) line.points.emplace_back(values.back(), 100.0);
  return line;
}

std::string plots(const LoadReport& report) {
  std::vector<LoadRun> runs;
  std::vector<std::string> names;
  for (const LoadLevel& level : report.levels) {
    runs.push_back(together(level.repeats));
    names.push_back(level.name);
  }
  std::string out;
  if (runs.size() > 1) {
    Line throughput{"", {}}, ttft50{"median", {}}, ttft99{"p99", {}}, tpot50{"median", {}}, tpot99{"p99", {}};
    for (size_t i = 0; i < runs.size(); ++i) {
      const LoadFigures f = figures_of(runs[i]);
      const auto x = static_cast<double>(i);
      throughput.points.emplace_back(x, f.output_throughput);
      ttft50.points.emplace_back(x, f.ttft_ms.median);
      ttft99.points.emplace_back(x, f.ttft_ms.p99);
      tpot50.points.emplace_back(x, f.tpot_ms.median);
      tpot99.points.emplace_back(x, f.tpot_ms.p99);
    }
    out += plot("Output token throughput (tok/s)", {throughput}, names, "in flight", true);
    out += plot("Time to first token (ms)", {ttft50, ttft99}, names, "in flight", true);
    out += plot("Time per output token (ms)", {tpot50, tpot99}, names, "in flight", true);
  }
  std::vector<Line> ttft, e2e;
  for (size_t i = 0; i < runs.size(); ++i) {
    ttft.push_back(shares(names[i], runs[i], &LoadRequest::ttft_ms));
    e2e.push_back(shares(names[i], runs[i], &LoadRequest::e2e_ms));
  }
  out += plot("Requests (%) with their first token within", ttft, {}, "ms", false);
  return out + plot("Requests (%) that ended within", e2e, {}, "ms", false);
}

}  // namespace

std::string report_html(const LoadReport& report) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>{0} under load</title><style>{1}</style></head><body><main>\n<h1>{0} under load</h1>\n"
      "<p class=\"facts\">{2} · {3} · dataset {4} · seed {5} · {6}</p>\n<h2>Plots</h2>\n<div class=\"plots\">\n",
      html_text(report.model), kStyle, html_text(report.url), html_text(report.backend), html_text(report.dataset),
      report.seed, html_text(report.date));
  html += plots(report);
  html += "</div>\n<h2>Figures</h2>\n<div class=\"wide\"><table><thead><tr><th>in flight</th>";
  for (const LoadLevel& level : report.levels) html += "<th>" + html_text(level.name) + "</th>";
  html += "</tr></thead><tbody>\n";
  for (const ReportRow& row : report_rows(report)) {
    if (row.values.empty()) {
      html += fmt::format("<tr class=\"section\"><th colspan=\"{}\">{}</th></tr>\n", report.levels.size() + 1,
                          html_text(row.name));
      continue;
    }
    html += "<tr><td>" + html_text(row.name) + "</td>";
    for (const std::string& value : row.values) html += "<td>" + html_text(value) + "</td>";
    html += "</tr>\n";
  }
  html += "</tbody></table></div>\n";
  const std::vector<ErrorKind> errors = report_errors(report);
  if (!errors.empty()) {
    html +=
        "<h2>Errors</h2>\n<div class=\"wide\"><table class=\"errors\"><thead><tr><th>in flight</th><th>kind</th>"
        "<th>requests</th><th>the first</th></tr></thead><tbody>\n";
    for (const ErrorKind& e : errors)
      html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"words\">{}</td></tr>\n", html_text(e.level),
                          html_text(e.kind), e.count, html_text(e.first));
    html += "</tbody></table></div>\n";
  }
  return html + "</main></body></html>\n";
}

}  // namespace mettle
