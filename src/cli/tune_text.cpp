// Figures of tuning as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/terminal.h"
#include "cli/tune_run.h"
#include "prove/tune_store.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

const AnyProblem* problem_of(const TuneGround& ground, const TunedUnit& unit) {
  for (const AnyProblem& p : ground.problems)
    if (op_name_of(p) == unit.op && text_of(p) == unit.problem) return &p;
  return nullptr;
}

std::string size_text(int64_t bytes) {
  return bytes >= 1 << 20 ? fmt::format("{} MiB", bytes >> 20) : fmt::format("{} KiB", bytes >> 10);
}

std::string head(const TuneGround& ground) {
  std::string text = fmt::format("{} on {} ({}), {} thread{}\n", ground.model, ground.device.name, ground.device.model,
                                 ground.threads, ground.threads == 1 ? "" : "s");
  text += "ceilings: reads";
  const auto& reads = ground.ceiling.reads;
  for (size_t i = 0; i < reads.size(); ++i)
    text += fmt::format("{} {:.4g} GB/s {}", i == 0 ? "" : ",", reads[i].gbs,
                        i + 1 == reads.size() ? "from memory" : "of " + size_text(reads[i].bytes));
  for (const MathRate& m : ground.ceiling.math) text += fmt::format("; {} {:.4g} GFLOP/s", m.name, m.gflops);
  if (ground.ceiling.math.empty()) text += "; arithmetic is not probed here";
  if (ground.ceiling.fork_us > 0) text += fmt::format("; an empty fork {:.1f} us", ground.ceiling.fork_us);
  return text + "\n";
}

std::string name_of(const TunedTime& t) { return t.backend + " " + t.tactic; }

std::vector<std::string> cells(const TuneGround& ground, const TunedUnit& u, const TunedTime& t) {
  const Roof roof = roof_of(*problem_of(ground, u), kRowBuckets[u.bucket], t.us, ground.ceiling, ground.device);
  return {fmt::format("{}", kRowBuckets[u.bucket]),
          name_of(t),
          fmt::format("{:.{}f}", t.us, t.us < 100 ? 2 : 0),
          fmt::format("{:.1f} %", 100 * t.noise),
          fmt::format("{:.3g}", roof.gbs),
          fmt::format("{:.3g}", roof.gflops),
          fmt::format("{:.0f} %", 100 * roof.part),
          roof.by_memory ? "memory" : "arithmetic"};
}

// What the figures looked the fastest without being chosen.
std::string looked_faster(const TunedUnit& u) {
  const auto best = std::min_element(u.times.begin(), u.times.end(),
                                     [](const TunedTime& a, const TunedTime& b) { return a.us < b.us; });
  return best == u.times.end() ? "" : name_of(*best);
}

std::string against_untuned(const TunedUnit& u) {
  switch (u.outcome) {
    case TuneOutcome::kSame:
      return "the same";
    case TuneOutcome::kFaster:
      return fmt::format("{}, {:.0f} % slower", name_of(u.untuned), 100 * (u.untuned.us / u.chosen.us - 1));
    case TuneOutcome::kKept:
      return fmt::format("stays: {} did not hold", looked_faster(u));
  }
  return "";
}

Json time_json(const TuneGround& ground, const TunedUnit& u, const TunedTime& t) {
  const Roof roof = roof_of(*problem_of(ground, u), kRowBuckets[u.bucket], t.us, ground.ceiling, ground.device);
  return {{"backend", t.backend},       {"tactic", t.tactic},   {"us", t.us},
          {"noise", t.noise},           {"samples", t.samples}, {"gb_per_s", roof.gbs},
          {"gflop_per_s", roof.gflops}, {"of_roof", roof.part}, {"limit", roof.by_memory ? "memory" : "arithmetic"}};
}

std::string summary(const TuneGround& ground, const TuneFigures& figures, bool every_tactic) {
  const TuneResult& r = figures.result;
  size_t faster = 0, stays = 0;
  const TunedUnit* furthest = nullptr;
  double least = 1e300;
  for (const TunedUnit& u : r.units) {
    faster += u.outcome == TuneOutcome::kFaster;
    stays += u.outcome == TuneOutcome::kKept;
    const double part =
        roof_of(*problem_of(ground, u), kRowBuckets[u.bucket], u.chosen.us, ground.ceiling, ground.device).part;
    if (part < least) least = part, furthest = &u;
  }
  std::string text = fmt::format("\n{} of {} buckets measured in {:.1f} s", r.units.size(), r.wanted, figures.seconds);
  if (r.kept > 0) text += fmt::format(", {} of them by earlier runs", r.kept);
  text += "\n";
  if (!every_tactic)
    text += fmt::format(
        "measured again beside the untuned choice: {} now faster, {} where the untuned one stays; the rest are the "
        "same\n",
        faster, stays);
  if (furthest != nullptr)
    text += fmt::format("furthest from its roof: {} at {} rows, {:.0f} %\n", furthest->op,
                        kRowBuckets[furthest->bucket], 100 * least);
  if (figures.result.units.size() > r.kept)
    text += fmt::format("while measuring: clock {}, power {}\n", figures.clock, figures.power);
  return text;
}

}  // namespace

std::string figures_text(const TuneGround& ground, const TuneFigures& figures, bool every_tactic) {
  std::string text = head(ground);
  const std::vector<TunedUnit>& units = figures.result.units;
  for (size_t i = 0; i < units.size();) {
    std::vector<std::string> heading = {
        "rows", every_tactic ? "tactic" : "chosen", "us", "noise", "GB/s", "GFLOP/s", "of roof", "limit"};
    if (!every_tactic) heading.emplace_back("untuned choice");
    Table table(std::move(heading));
    const std::string problem = units[i].problem, op = units[i].op;
    for (; i < units.size() && units[i].problem == problem && units[i].op == op; ++i) {
      const TunedUnit& u = units[i];
      if (every_tactic) {
        std::vector<TunedTime> times = u.times;
        std::stable_sort(times.begin(), times.end(),
                         [](const TunedTime& a, const TunedTime& b) { return a.us < b.us; });
        for (const TunedTime& t : times) table.add(cells(ground, u, t));
      } else {
        std::vector<std::string> row = cells(ground, u, u.chosen);
        row.push_back(against_untuned(u));
        table.add(std::move(row));
      }
    }
    text +=
        fmt::format("\n{}\n{}", problem.starts_with(op) ? problem : op + " " + problem, table.text({0, 2, 3, 4, 5, 6}));
  }
  return text + summary(ground, figures, every_tactic);
}

std::string figures_json(const TuneGround& ground, const TuneFigures& figures) {
  const TuneResult& r = figures.result;
  Json reads = Json::array(), math = Json::object(), units = Json::array();
  for (const ReadRate& rate : ground.ceiling.reads) reads.push_back({{"bytes", rate.bytes}, {"gb_per_s", rate.gbs}});
  for (const MathRate& rate : ground.ceiling.math) math[std::string(rate.name)] = rate.gflops;
  for (const TunedUnit& u : r.units) {
    const OpCost cost = cost_of(*problem_of(ground, u), kRowBuckets[u.bucket], ground.device.kind);
    Json times = Json::array();
    for (const TunedTime& t : u.times) times.push_back(time_json(ground, u, t));
    units.push_back({{"op", u.op},
                     {"problem", u.problem},
                     {"rows", kRowBuckets[u.bucket]},
                     {"bytes", cost.bytes},
                     {"flops", cost.flops},
                     {"outcome", mettle::name_of(u.outcome)},
                     {"chosen", time_json(ground, u, u.chosen)},
                     {"untuned", time_json(ground, u, u.untuned)},
                     {"times", times}});
  }
  const Json all = {{"model", ground.model},
                    {"device", ground.device.name},
                    {"device_model", ground.device.model},
                    {"build", build_id()},
                    {"threads", ground.threads},
                    {"ceiling", {{"reads", reads}, {"gflop_per_s", math}, {"fork_us", ground.ceiling.fork_us}}},
                    {"wanted", r.wanted},
                    {"done", r.units.size()},
                    {"from_earlier_runs", r.kept},
                    {"out_of_time", r.out_of_time},
                    {"dropped", r.dropped},
                    {"refused", r.refused},
                    {"timed_from_cache", r.from_cache},
                    {"seconds", figures.seconds},
                    {"clock", figures.clock},
                    {"power", figures.power},
                    {"units", units}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace mettle
