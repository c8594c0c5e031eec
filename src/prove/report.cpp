#include "prove/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

Colour colour_of(const ProofEntry& e) {
  if (e.verdict.ok()) return Colour::kGreen;
  return info_of(e.verdict.code).refusal ? Colour::kYellow : Colour::kRed;
}

// choose() tells what serves on its reference backend; who only asks what would serve has heard it.
class Quiet {
 public:
  Quiet() : before_(log::level()) { log::set_level(log::Level::kOff); }
  ~Quiet() { log::set_level(before_); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  log::Level before_;
};

}  // namespace

std::string report_table(const ProofReport& report, bool colour) {
  Table table({"op", "backend", "tactic", "verdict", "error/bound", "comparisons", "ms"});
  for (const ProofEntry& e : report.entries) {
    const bool judged = e.comparisons > 0;
    table.add({e.op, e.backend, e.tactic.empty() ? "-" : e.tactic, std::string(name_of(e.verdict.code)),
               judged ? fmt::format("{:.2g}/{:g}", e.max_error, e.bound) : "-",
               judged ? fmt::format("{}", e.comparisons) : "-", e.cached ? "cached" : fmt::format("{:.0f}", e.ms)});
  }
  std::string text = table.text({4, 5, 6});
  if (!colour) return text;
  // Paint the verdicts: the lines after the heading stand in the order of the entries.
  std::string painted;
  size_t line = 0, at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    std::string row = text.substr(at, end - at);
    if (line > 0 && line <= report.entries.size()) {
      const ProofEntry& e = report.entries[line - 1];
      const std::string name(name_of(e.verdict.code));
      if (const size_t place = row.find(name); place != std::string::npos)
        row.replace(place, name.size(), paint(colour_of(e), name, true));
    }
    painted += row;
    at = end;
    ++line;
  }
  return painted;
}

std::string report_json(const ProofReport& report) {
  Json results = Json::array();
  for (const ProofEntry& e : report.entries)
    results.push_back({{"op", e.op},
                       {"backend", e.backend},
                       {"tactic", e.tactic},
                       {"problem", e.problem},
                       {"verdict", name_of(e.verdict.code)},
                       {"have", e.verdict.have},
                       {"need", e.verdict.need},
                       {"sentence", e.verdict.sentence},
                       {"remedy", e.verdict.remedy},
                       {"max_error", e.max_error},
                       {"bound", e.bound},
                       {"group_error", e.group_error},
                       {"comparisons", e.comparisons},
                       {"cases", e.cases},
                       {"ms", e.ms},
                       {"cached", e.cached},
                       {"us", e.us},
                       {"timed_from_cache", e.timed_from_cache}});
  const Json all = {
      {"device", report.device}, {"build", report.build}, {"row_buckets", kRowBuckets}, {"results", results}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<ServingChoice> serving_choices(const ProofReport& report, std::span<const AnyProblem> problems) {
  const Quiet quiet;
  std::vector<ServingChoice> out;
  std::set<std::string> seen;
  for (const ProofEntry& e : report.entries) {
    if (!seen.insert(e.problem).second) continue;
    ServingChoice choice{.problem = e.problem};
    const auto problem =
        std::find_if(problems.begin(), problems.end(), [&](const AnyProblem& p) { return text_of(p) == e.problem; });
    const auto fill = [&](const auto& p) {
      try {
        const auto choices = choose(report, p);
        for (size_t b = 0; b < kRowBuckets.size(); ++b) {
          choice.backend[b] = choices.by_bucket[b].backend->name;
          choice.tactic[b] = choices.by_bucket[b].tactic.name;
        }
      } catch (const Error&) {  // nothing is proved
      }
    };
    if (problem != problems.end()) std::visit(fill, *problem);
    out.push_back(std::move(choice));
  }
  return out;
}

}  // namespace mettle
