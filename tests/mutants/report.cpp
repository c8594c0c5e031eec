#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "prove/judge.h"

namespace mettle::mutants {
namespace {

constexpr size_t kFewestOfAnOp = 12, kFewest = 140;
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

double Result::ratio() const {
  const std::string by = rule();
  if (by == "groups") return group_error;
  return by == "element" || by == "selection" ? error / judge::kElement : std::numeric_limits<double>::infinity();
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

std::string missing_faults(const std::map<std::string, size_t>& of_op) {
  size_t all = 0;
  for (const auto& [op, count] : of_op) {
    if (count < kFewestOfAnOp)
      return fmt::format("{} has {} faults, at least {} are asked for", op, count, kFewestOfAnOp);
    all += count;
  }
  return all < kFewest ? fmt::format("there are {} faults, at least {} are asked for", all, kFewest) : "";
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

namespace {

// "name: 17" of the fault that this rule convicts nearest to the line.
std::string weakest(const Score& score, std::string_view op, std::string_view rule) {
  const Result* found = nullptr;
  for (const Result& r : score.results)
    if (r.op == op && r.rule() == rule && (found == nullptr || r.ratio() < found->ratio())) found = &r;
  if (found == nullptr) return "-";
  return fmt::format("{}: {}", found->name, figure(rule == "groups" ? found->group_error : found->error));
}

}  // namespace

std::string markdown(const Score& score) {
  std::string out =
      "| op | faults | healthy: worst element, of 10 | worst group, of 1 | weakest by element, of 10 | by selection, "
      "of "
      "10 | by groups, of 1 | convicted by | naive check passes |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const std::string_view op : kOps) {
    double element = 0, group = 0;
    std::map<std::string, int> rules;
    PerFault<bool> naive;
    bool any = false;
    for (const HealthyResult& h : score.healthy) {
      if (h.op != op || !h.passed) continue;
      any = true;
      element = std::max(element, h.error);
      group = std::max(group, h.group_error);
    }
    for (const Result& r : score.results) {
      if (r.op != op) continue;
      ++rules[r.caught() ? r.rule() : "survived"];
      const auto at = naive.try_emplace({r.op, r.name}, true).first;
      at->second = at->second && r.naive;
    }
    if (naive.empty() && !any) continue;
    std::vector<std::pair<int, std::string>> order;
    for (const auto& [rule, count] : rules) order.emplace_back(count, rule);
    std::sort(order.rbegin(), order.rend());
    std::string convicts;
    for (const auto& [count, rule] : order)
      convicts += fmt::format("{}{} {}", convicts.empty() ? "" : ", ", rule, count);
    const auto blind = std::count_if(naive.begin(), naive.end(), [](const auto& f) { return f.second; });
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", op, naive.size(),
                       any ? figure(element) : "-", any ? figure(group) : "-", weakest(score, op, "element"),
                       weakest(score, op, "selection"), weakest(score, op, "groups"), convicts, blind);
  }
  return out;
}

std::string json(const Score& score) {
  using Json = nlohmann::ordered_json;
  // Infinity has no JSON: null.
  const auto number = [](double x) { return x < 1e29 ? Json(x) : Json(); };
  Json faults = Json::array(), healthy = Json::array();
  for (const Result& r : score.results)
    faults.push_back({{"op", r.op},
                      {"name", r.name},
                      {"geometry", r.geometry},
                      {"caught", r.caught()},
                      {"verdict", name_of(r.verdict.code)},
                      {"rule", r.rule()},
                      {"sigmas", number(r.error)},
                      {"group_error", number(r.group_error)},
                      {"ratio", number(r.ratio())},
                      {"naive_passes", r.naive},
                      {"sentence", r.verdict.sentence}});
  for (const HealthyResult& h : score.healthy)
    healthy.push_back({{"op", h.op},
                       {"backend", h.backend},
                       {"tactic", h.tactic},
                       {"geometry", h.geometry},
                       {"seed", h.seed},
                       {"passed", h.passed},
                       {"verdict", name_of(h.verdict.code)},
                       {"sigmas", number(h.error)},
                       {"group_error", number(h.group_error)},
                       {"sentence", h.verdict.sentence}});
  const Json all = {{"sigmas_allowed", judge::kElement}, {"faults", faults}, {"healthy", healthy}};
  return all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace mettle::mutants
