#include "sweep/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/html.h"

namespace mettle::sweep {
namespace {

constexpr double kWidth = 640, kHeight = 330, kLeft = 64, kRight = 20, kTop = 16, kBottom = 52;

std::string number(double value) {
  if (value >= 10'000) return fmt::format("{:.0f}k", value / 1000);
  if (value == std::floor(value)) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

}  // namespace

std::vector<double> round_ticks(double most) {
  if (!(most > 0) || !std::isfinite(most)) most = 1;
  const double rough = most / 4, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0})
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  std::vector<double> ticks = {0};
  while (ticks.back() < most) ticks.push_back(step * static_cast<double>(ticks.size()));
  return ticks;
}

std::string svg(const Plot& plot) {
  std::set<double> xs;
  double most = 0;
  for (const Series& s : plot.series)
    for (const auto& [x, y] : s.points)
      if (std::isfinite(x) && std::isfinite(y)) {
        xs.insert(x);
        most = std::max(most, y);
      }
  if (xs.empty()) return "";
  const std::vector<double> x_ticks(xs.begin(), xs.end()), y_ticks = round_ticks(most);
  const double inner = kWidth - kLeft - kRight, floor = kHeight - kBottom;
  const auto at_x = [&](double x) {
    const auto place = static_cast<double>(std::lower_bound(x_ticks.begin(), x_ticks.end(), x) - x_ticks.begin());
    return kLeft + inner * (place + 0.5) / static_cast<double>(x_ticks.size());
  };
  const auto at_y = [&](double y) { return floor - (floor - kTop) * y / y_ticks.back(); };
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth, kHeight,
                                html_text(plot.title));
  for (const double y : y_ticks)
    out += fmt::format(
        "<line class=\"{}\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text class=\"label\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        y == 0 ? "axis" : "grid", kLeft, kWidth - kRight, at_y(y), at_y(y), kLeft - 8, at_y(y) + 4, number(y));
  for (const double x : x_ticks)
    out += fmt::format("<text class=\"label\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", at_x(x),
                       floor + 20, number(x));
  out += fmt::format("<text class=\"label\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", kLeft + inner / 2,
                     kHeight - 8, html_text(plot.x_label));
  out +=
      fmt::format("<text class=\"label\" transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                  (floor + kTop) / 2, html_text(plot.y_label));
  for (const Series& s : plot.series) {
    std::string line, dots;
    for (const auto& [x, y] : s.points) {
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", at_x(x), at_y(y));
      dots += fmt::format(
          "<circle class=\"s{} dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"><title>{}: {} at {}</title></circle>\n",
          s.colour % 8, at_x(x), at_y(y), html_text(s.name), number(y), number(x));
    }
    out += fmt::format("<polyline class=\"s{} line\" points=\"{}\"/>\n{}", s.colour % 8, line, dots);
  }
  return out + "</svg>\n";
}

}  // namespace mettle::sweep
