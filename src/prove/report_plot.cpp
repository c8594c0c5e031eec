#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/html.h"
#include "prove/report.h"
#include "prove/report_parts.h"

namespace mettle {
namespace {

// Part of what is allowed -> percent of the plot's width: up to the line in proportion, beyond it by powers of ten.
constexpr double kLeft = 1.5, kLine = 72, kRight = 98.5, kDecades = 6, kBeyond = 1e30;
double place(double part) {
  if (!(part > 1)) return kLeft + (kLine - kLeft) * std::max(part, 0.0);
  return kLine + (kRight - kLine) * std::min(std::log10(part) / kDecades, 1.0);
}

}  // namespace

ProofState state_of(const ProofEntry& e) {
  if (e.verdict.ok()) return ProofState::kProved;
  return info_of(e.verdict.code).refusal && e.verdict.code != VerdictCode::kUnproved ? ProofState::kRefused
                                                                                     : ProofState::kFailed;
}
std::string_view class_of(ProofState s) {
  return s == ProofState::kProved ? "ok" : s == ProofState::kRefused ? "refused" : "failed";
}

std::string sigmas_text(double x) {
  if (x == 0) return "0";
  if (x < 0.01) return "&lt;\u202F0.01";
  if (x < 10) return fmt::format("{:.2g}", x);
  return x < 1e5 ? fmt::format("{:.0f}", x) : x < 1e29 ? fmt::format("{:.0e}", x) : "∞";
}

// A lane per backend: where its tactics lie between nothing and the line, and how far beyond it.
std::string distance_plot(const std::vector<const ProofEntry*>& entries) {
  std::vector<std::string> backends;
  for (const ProofEntry* e : entries)
    if (e->comparisons > 0 && std::find(backends.begin(), backends.end(), e->backend) == backends.end())
      backends.push_back(e->backend);
  if (backends.empty()) return {};
  std::string out;
  const auto put = [&]<class... A>(fmt::format_string<A...> f, A&&... a) {
    fmt::format_to(std::back_inserter(out), f, std::forward<A>(a)...);
  };
  constexpr int kLane = 38, kTop = 18, kDots = 27;
  const int height = kTop + kLane * static_cast<int>(backends.size()) + 4;
  put("<figure>\n<svg width=\"100%\" height=\"{}\" role=\"img\" aria-label=\"Worst errors of {} in parts of what is "
      "allowed\">\n<rect class=\"wrong\" x=\"{}%\" y=\"{}\" width=\"{}%\" height=\"{}\"/>\n",
      height, html_text(entries.front()->op), kLine, kTop, 100 - kLine, height - kTop);
  for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0, 100.0, 1e4})
    put("<line class=\"{0}\" x1=\"{1:.2f}%\" x2=\"{1:.2f}%\" y1=\"{2}\" y2=\"{3}\"/>\n", part == 1 ? "limit" : "grid",
        place(part), kTop, height);
  for (const auto& [part, words] : {std::pair{0.0, "0"}, {0.5, "50 %"}, {1.0, "the line"}, {1e4, "10⁴ times"}})
    put("<text class=\"axis\" x=\"{:.2f}%\" y=\"12\" text-anchor=\"{}\">{}</text>\n", place(part),
        part == 0 ? "start" : "middle", words);
  int y = kTop;
  for (const std::string& backend : backends) {
    double worst = -1;
    const ProofEntry* of = nullptr;
    std::string rings, dots;
    for (const ProofEntry* e : entries) {
      if (e->backend != backend || e->comparisons == 0) continue;
      double part = e->max_error / e->bound;
      if (!(e->bound > 0) || std::isnan(part)) part = kBeyond;
      if (part > worst) worst = part, of = e;
      const std::string_view style = class_of(state_of(*e));
      if (e->group_error > 0)
        rings += fmt::format(
            "<circle class=\"ring {}\" cx=\"{:.2f}%\" cy=\"{}\" r=\"4\"><title>{}: worst group at "
            "{:.0f} % of its limit</title></circle>\n",
            style, place(e->group_error), y + kDots, html_text(e->tactic), 100 * std::min(e->group_error, 1e6));
      dots += fmt::format(
          "<circle class=\"dot {}\" cx=\"{:.2f}%\" cy=\"{}\" r=\"4.5\"><title>{}: {} of {:g} "
          "sigmas</title></circle>\n",
          style, place(part), y + kDots, html_text(e->tactic), sigmas_text(e->max_error), e->bound);
    }
    put("<line class=\"lane\" x1=\"{}%\" x2=\"{}%\" y1=\"{}\" y2=\"{}\"/>\n", kLeft, kRight, y + kDots, y + kDots);
    out += rings + dots;
    put("<text class=\"name\" x=\"{}%\" y=\"{}\">{} <tspan class=\"axis\">{} of {:g} σ, {}</tspan></text>\n", kLeft,
        y + 15, html_text(backend, 40), sigmas_text(of->max_error), of->bound, html_text(of->tactic, 40));
    y += kLane;
  }
  put("</svg>\n</figure>\n");
  return out;
}

}  // namespace mettle
