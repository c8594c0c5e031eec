#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace mettle::mutants {
namespace {

constexpr std::string_view kOps[] = {"embed", "join", "linear", "moe", "attention", "gdn", "sample"};

template <class T>
using PerFault = std::map<std::pair<std::string, std::string>, T>;

std::string figure(double x) {
  if (x >= 1e12) return "infinite";
  if (x >= 1e5) return fmt::format("{:.1e}", x);
  return x >= 100 ? fmt::format("{:.0f}", x) : fmt::format("{:.2g}", x);
}

}  // namespace

std::string Result::rule() const {
  const std::string& s = verdict.sentence;
  if (const size_t at = s.rfind("(rule: "); at != std::string::npos) return s.substr(at + 7, s.find(')', at) - at - 7);
  switch (verdict.code) {
    case VerdictCode::kWrongSelection:
      return "selection";
    case VerdictCode::kOverrun:
    case VerdictCode::kIncompleteWrite:
      return "memory";
    case VerdictCode::kNotFinite:
    case VerdictCode::kZeroOutput:
      return "not finite, zero";
    case VerdictCode::kRowDependent:
      return "rows";
    case VerdictCode::kNondeterministic:
      return "second run";
    case VerdictCode::kFault:
    case VerdictCode::kHang:
    case VerdictCode::kOutOfMemory:
      return "process";
    default:
      return std::string(name_of(verdict.code));
  }
}

size_t Score::faults() const {
  std::set<std::pair<std::string, std::string>> names;
  for (const Result& r : results) names.emplace(r.op, r.name);
  return names.size();
}

size_t Score::caught() const {
  PerFault<bool> all;
  for (const Result& r : results) {
    const auto at = all.try_emplace({r.op, r.name}, true).first;
    at->second = at->second && r.caught();
  }
  return static_cast<size_t>(std::count_if(all.begin(), all.end(), [](const auto& f) { return f.second; }));
}

size_t Score::naive() const {
  PerFault<bool> all;
  for (const Result& r : results) {
    const auto at = all.try_emplace({r.op, r.name}, true).first;
    at->second = at->second && r.naive;
  }
  return static_cast<size_t>(std::count_if(all.begin(), all.end(), [](const auto& f) { return f.second; }));
}

size_t Score::false_alarms() const {
  return static_cast<size_t>(
      std::count_if(healthy.begin(), healthy.end(), [](const HealthyResult& h) { return !h.passed; }));
}

void print(const Score& score, bool each) {
  for (const Result& r : score.results) {
    if (r.caught() && !each) continue;
    fmt::print("{} {:5} {} {}: {} {}\n", r.caught() ? "caught  " : "SURVIVED", r.geometry, r.op, r.name,
               name_of(r.verdict.code), r.verdict.sentence);
  }
  for (const HealthyResult& h : score.healthy)
    if (!h.passed)
      fmt::print("FALSE ALARM {} seed {}: {} {} {}: {} {}\n", h.geometry, h.seed, h.op, h.backend, h.tactic,
                 name_of(h.verdict.code), h.verdict.sentence);
  std::map<std::string, size_t> of_op;
  std::set<std::pair<std::string, std::string>> seen;
  for (const Result& r : score.results)
    if (seen.emplace(r.op, r.name).second) ++of_op[r.op];
  std::string per_op;
  for (const std::string_view op : kOps)
    if (of_op.contains(std::string(op))) per_op += fmt::format(" {} {}", op, of_op[std::string(op)]);
  fmt::print("faults:{}\n", per_op);
  fmt::print("healthy proofs: {}\n", score.healthy.size());
  fmt::print("naive check (5 % of the largest value) passes {} of {}\n", score.naive(), score.faults());
  fmt::print("caught {} of {}, false alarms {}\n", score.caught(), score.faults(), score.false_alarms());
}

std::string markdown(const Score& score) {
  std::string out =
      "| op | faults | healthy, worst element | weakest fault the element rule convicts | convicted by | naive check "
      "passes |\n"
      "| --- | --- | --- | --- | --- | --- |\n";
  for (const std::string_view op : kOps) {
    double healthy = 0, weakest = 1e300;
    std::string name;
    std::map<std::string, int> rules;
    PerFault<bool> naive;
    for (const HealthyResult& h : score.healthy)
      if (h.op == op && h.passed) healthy = std::max(healthy, h.error);
    for (const Result& r : score.results) {
      if (r.op != op) continue;
      ++rules[r.caught() ? r.rule() : "survived"];
      const auto at = naive.try_emplace({r.op, r.name}, true).first;
      at->second = at->second && r.naive;
      if (r.rule() == "element" && r.error < weakest) weakest = r.error, name = r.name;
    }
    if (naive.empty() && healthy == 0) continue;
    std::vector<std::pair<int, std::string>> order;
    for (const auto& [rule, count] : rules) order.emplace_back(count, rule);
    std::sort(order.rbegin(), order.rend());
    std::string convicts;
    for (const auto& [count, rule] : order)
      convicts += fmt::format("{}{} {}", convicts.empty() ? "" : ", ", rule, count);
    const auto blind = std::count_if(naive.begin(), naive.end(), [](const auto& f) { return f.second; });
    out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", op, naive.size(), figure(healthy),
                       name.empty() ? "-" : fmt::format("{}: {}", name, figure(weakest)), convicts, blind);
  }
  return out;
}

}  // namespace mettle::mutants
