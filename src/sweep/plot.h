// Line plots as SVG text, for a page that sets the colours: classes s0 to s7 for series, axis, grid, label.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace mettle::sweep {

struct Series {
  std::string name;
  int colour = 0;                                 // 0 to 7
  std::vector<std::pair<double, double>> points;  // x ascending
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<Series> series;
};

// Every x that occurs has its own tick, equally far apart; y begins at 0. Values that are not finite are left out.
// "" when there is no point at all.
std::string svg(const Plot& plot);

// The largest of ticks 0, s, 2s, ... that reach over `most`, with a round s.
std::vector<double> round_ticks(double most);

}  // namespace mettle::sweep
