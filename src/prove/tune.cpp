#include "prove/tune.h"

#include <fmt/format.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/subprocess.h"
#include "prove/problem_json.h"
#include "prove/tune_store.h"

namespace mettle {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr double kDear = 20'000;  // us of a launch
constexpr double kHopeless = 5;   // so many times slower than the best by the proof's times
constexpr size_t kOutputLimit = size_t{256} << 20;
constexpr std::chrono::seconds kGrace{300};  // beyond the budget: a problem's cases are made before the clock is asked

struct Job {
  const AnyProblem* problem = nullptr;
  std::string op, text;
  std::vector<size_t> entries;                               // of the report: proved
  std::array<size_t, kRowBuckets.size()> untuned{};          // entry of the report
  std::array<bool, kRowBuckets.size()> open{};               // to be measured
  std::array<const TunedUnit*, kRowBuckets.size()> given{};  // imported: only its choice is measured
};

class Run {
 public:
  Run(const ProofReport& report, const TuneOptions& options, std::vector<Job>& jobs, TuningStore& store,
      TuneResult& result)
      : report_(report), options_(options), jobs_(jobs), store_(store), result_(result) {}

  // Children until nothing is open or the time is up; each death drops at least one tactic.
  void work() {
    const auto begin = Clock::now();
    for (size_t open = opens(); open > 0; open = opens()) {
      const double left = options_.seconds - std::chrono::duration<double>(Clock::now() - begin).count();
      if (left <= 0) {
        result_.out_of_time = true;
        return;
      }
      current_ = kNone;
      hello_ = ended_ = false;
      const SubprocessResult child = run_child(left);
      if (result_.out_of_time) return;
      if (ended_) {
        if (opens() == open) fail(Code::kDevice, "tune: the child ended without a result");
        continue;
      }
      if (!hello_)
        fail(Code::kDevice,
             fmt::format("tune: the child did not start: {}; its last words: {:.300}", how(child), child.err));
      if (child.end == SubprocessEnd::kDeadline || current_ == kNone) {
        if (child.end != SubprocessEnd::kDeadline)
          fail(Code::kDevice, fmt::format("tune: the child ended between its tactics: {}; its last words: {:.300}",
                                          how(child), child.err));
        result_.out_of_time = true;
        return;
      }
      drop(current_, how(child));
    }
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  static size_t opens(const Job& job) {
    return static_cast<size_t>(std::count(job.open.begin(), job.open.end(), true));
  }
  size_t opens() const {
    size_t all = 0;
    for (const Job& job : jobs_) all += opens(job);
    return all;
  }

  bool dropped(size_t entry) const { return dropped_.count(entry) > 0; }

  // What the proof saw of it says that it cannot be the best and costs a lot to time.
  bool hopeless(const Job& job, size_t entry, size_t bucket) const {
    const ProofEntry& e = report_.entries[entry];
    const double best = us_at(report_.entries[job.untuned[bucket]], bucket), us = us_at(e, bucket);
    return e.us[bucket] == 0 && best > 0 && us > kDear && us > kHopeless * best;
  }

  std::string input(double seconds) const {
    const int gpu = options_.device.kind == DeviceKind::kCuda ? options_.device.index : -1;
    const json head = {
        {"threads", options_.threads}, {"seed", 1}, {"gpu", gpu}, {"seconds", seconds}, {"units", opens()}};
    std::string text = head.dump() + "\n";
    for (size_t i = 0; i < jobs_.size(); ++i) {
      const Job& job = jobs_[i];
      if (opens(job) == 0) continue;
      json entries = json::array(), buckets = json::array();
      for (const size_t e : job.entries)
        if (!dropped(e))
          entries.push_back(
              {{"id", e}, {"backend", report_.entries[e].backend}, {"tactic", report_.entries[e].tactic}});
      for (size_t b = 0; b < job.open.size(); ++b) {
        if (!job.open[b]) continue;
        std::vector<size_t> ids = {job.untuned[b]};
        for (const size_t e : job.entries)
          if (e != job.untuned[b] && !dropped(e) && asked(job, e, b)) ids.push_back(e);
        buckets.push_back({{"bucket", b}, {"untuned", job.untuned[b]}, {"ids", ids}});
      }
      text +=
          json{{"problem", to_json(*job.problem)}, {"index", i}, {"entries", entries}, {"buckets", buckets}}.dump() +
          "\n";
    }
    return text;
  }

  bool asked(const Job& job, size_t entry, size_t bucket) const {
    const TunedUnit* given = job.given[bucket];
    if (given == nullptr) return !hopeless(job, entry, bucket);
    const ProofEntry& e = report_.entries[entry];
    return e.backend == given->chosen.backend && e.tactic == given->chosen.tactic;
  }

  SubprocessResult run_child(double seconds) {
    SubprocessOptions child;
    child.argv = options_.child_argv;
    if (child.argv.empty()) child.argv = {"/proc/self/exe", "tune", "--child"};
    child.input = input(seconds);
    child.deadline = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)) + kGrace;
    child.silence = std::chrono::milliseconds(options_.silence_ms);
    child.output_limit = kOutputLimit;
    child.on_line = [this](std::string_view line) { on_line(line); };
    return run_subprocess(child);
  }

  // Anything that is not an event of the protocol is ignored.
  void on_line(std::string_view line) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object()) return;
    try {
      if (event.contains("hello")) hello_ = true;
      if (event.contains("end")) ended_ = true;
      if (event.contains("out_of_time")) result_.out_of_time = true;
      if (event.contains("timing")) {
        const auto id = event.at("timing").get<size_t>();
        current_ = id < report_.entries.size() ? id : kNone;
        if (options_.on_work) options_.on_work();
      }
      if (event.contains("unit")) take(event);
    } catch (const std::exception& e) {
      log::debug("tune: a line of the child is ignored: {}", e.what());
    }
  }

  TunedTime time_of(size_t entry, const json& figures) const {
    const ProofEntry& e = report_.entries.at(entry);
    TunedTime t{e.backend, e.tactic, figures.at(0).get<double>(), figures.at(1).get<double>(),
                figures.at(2).get<int>()};
    if (!(t.us > 0 && t.us < 1e10 && t.noise >= 0 && t.noise < 100 && t.samples > 0))
      fail(Code::kDevice, "times that cannot be");
    return t;
  }

  void take(const json& event) {
    Job& job = jobs_.at(event.at("unit").get<size_t>());
    const auto b = event.at("bucket").get<size_t>();
    if (!job.open.at(b)) return;
    const auto proved = [&](size_t entry) {
      if (std::find(job.entries.begin(), job.entries.end(), entry) == job.entries.end())
        fail(Code::kDevice, "times of a tactic that was not asked for");
      return entry;
    };
    TunedUnit unit{.op = job.op, .problem = job.text, .bucket = b};
    std::map<size_t, TunedTime> times;
    for (const json& t : event.at("times")) {
      const size_t entry = proved(t.at(0).get<size_t>());
      times[entry] = time_of(entry, {t.at(1), t.at(2), t.at(3)});
    }
    for (const auto& [entry, time] : times) unit.times.push_back(time);
    unit.chosen = unit.untuned = times.at(job.untuned[b]);
    if (event.contains("other")) {
      const TunedTime other = time_of(proved(event.at("other").get<size_t>()), event.at("again").at(0));
      unit.untuned = time_of(job.untuned[b], event.at("again").at(1));
      unit.outcome = clearly_faster(other, unit.untuned) ? TuneOutcome::kFaster : TuneOutcome::kKept;
      unit.chosen = unit.outcome == TuneOutcome::kFaster ? other : unit.untuned;
    }
    if (job.given[b] != nullptr) unit.times = with(job.given[b]->times, unit);
    if (event.value("from_cache", false)) {
      const std::string problem = job.op + " " + job.text;
      if (result_.from_cache.empty() || result_.from_cache.back() != problem) result_.from_cache.push_back(problem);
    } else {
      store_.put(unit);
    }
    result_.units.push_back(std::move(unit));
    job.open[b] = false;
    progress();
  }

  // What another run found, with what was measured here in its place.
  static std::vector<TunedTime> with(std::vector<TunedTime> theirs, const TunedUnit& unit) {
    for (const TunedTime& t : unit.times) {
      const auto at = std::find_if(theirs.begin(), theirs.end(),
                                   [&](const TunedTime& x) { return x.backend == t.backend && x.tactic == t.tactic; });
      if (at == theirs.end())
        theirs.push_back(t);
      else
        *at = t;
    }
    return theirs;
  }

  void progress() const {
    if (!options_.on_progress) return;
    const TunedUnit& u = result_.units.back();
    options_.on_progress(result_.units.size(), result_.wanted, fmt::format("{} {} rows", u.op, kRowBuckets[u.bucket]));
  }

  // It is proved and serves as the proof's times say; buckets in which it would be the measure stay as they are.
  void drop(size_t entry, const std::string& end) {
    const ProofEntry& e = report_.entries[entry];
    dropped_.insert(entry);
    result_.dropped.push_back(fmt::format("{} {} {} ({}): {}", e.op, e.backend, e.tactic, e.problem, end));
    for (Job& job : jobs_)
      for (size_t b = 0; b < job.open.size(); ++b)
        if (job.untuned[b] == entry) job.open[b] = false;
  }

  static std::string how(const SubprocessResult& r) {
    const char* name = r.end == SubprocessEnd::kSignaled ? sigabbrev_np(r.signal) : nullptr;
    switch (r.end) {
      case SubprocessEnd::kExited:
        return fmt::format("it ended the process with exit code {}", r.exit_code);
      case SubprocessEnd::kSignaled:
        return fmt::format("ended by signal {}",
                           name != nullptr ? fmt::format("SIG{}", name) : fmt::to_string(r.signal));
      case SubprocessEnd::kDeadline:
        return "its time was up";
      case SubprocessEnd::kSilence:
        return "it gave no sign of life";
      case SubprocessEnd::kOutputLimit:
        return "it wrote without end";
    }
    return "?";
  }

  const ProofReport& report_;
  const TuneOptions& options_;
  std::vector<Job>& jobs_;
  TuningStore& store_;
  TuneResult& result_;
  std::set<size_t> dropped_;
  size_t current_ = kNone;
  bool hello_ = false, ended_ = false;
};

// The proved entries of a problem and what the proof's times choose; nothing where nothing is proved.
std::optional<Job> job_of(const AnyProblem& problem, const ProofReport& report) {
  Job job{.problem = &problem, .op = std::string(op_name_of(problem)), .text = text_of(problem)};
  for (size_t e = 0; e < report.entries.size(); ++e)
    if (report.entries[e].op == job.op && report.entries[e].problem == job.text && report.entries[e].verdict.ok())
      job.entries.push_back(e);
  if (job.entries.empty()) return std::nullopt;
  const auto untuned = [&](const auto& p) {
    const auto choices = choose(report, p);
    for (size_t b = 0; b < job.untuned.size(); ++b) {
      const auto& choice = choices.by_bucket[b];
      job.untuned[b] =
          static_cast<size_t>(report.find(job.text, choice.backend->name, choice.tactic.name) - report.entries.data());
    }
  };
  std::visit(untuned, problem);
  return job;
}

// Kept by an earlier run with the same program: usable while all that it names is proved.
bool holds(const TunedUnit& unit, const ProofReport& report) {
  const auto proved = [&](const TunedTime& t) {
    const ProofEntry* e = report.find(unit.problem, t.backend, t.tactic);
    return e != nullptr && e->op == unit.op && e->verdict.ok();
  };
  return std::all_of(unit.times.begin(), unit.times.end(), proved) && proved(unit.chosen) && proved(unit.untuned);
}

}  // namespace

TuneResult tune(std::span<const AnyProblem> problems, const ProofReport& report, const TuneOptions& options,
                const std::vector<TunedUnit>* imported) {
  TuneResult result;
  TuningStore store(options.cache_folder, tuning_identity(options.device, options.threads));
  const std::vector<TunedUnit> kept = options.retune || imported != nullptr ? std::vector<TunedUnit>{} : store.load();
  const auto unit_of = [](const std::vector<TunedUnit>& units, const Job& job, size_t b) -> const TunedUnit* {
    for (const TunedUnit& u : units)
      if (u.op == job.op && u.problem == job.text && u.bucket == b) return &u;
    return nullptr;
  };
  std::vector<Job> jobs;
  std::set<std::string> seen;  // layers of a model share their problems
  for (const AnyProblem& problem : problems) {
    if (!options.only_op.empty() && options.only_op != op_name_of(problem)) continue;
    if (!seen.insert(std::string(op_name_of(problem)) + " " + text_of(problem)).second) continue;
    std::optional<Job> job = job_of(problem, report);
    if (!job) {
      result.refused.push_back(std::string(op_name_of(problem)) + " " + text_of(problem));
      continue;
    }
    for (size_t b = 0; b < kRowBuckets.size(); ++b) {
      ++result.wanted;
      const TunedUnit* done = unit_of(kept, *job, b);
      if (done != nullptr && holds(*done, report)) {
        result.units.push_back(*done);
        ++result.kept;
        continue;
      }
      job->given[b] = imported != nullptr ? unit_of(*imported, *job, b) : nullptr;
      job->open[b] = imported == nullptr || job->given[b] != nullptr;
    }
    jobs.push_back(std::move(*job));
  }
  Run(report, options, jobs, store, result).work();
  std::vector<TunedUnit> sorted;
  for (const Job& job : jobs)
    for (size_t b = 0; b < kRowBuckets.size(); ++b)
      if (const TunedUnit* u = unit_of(result.units, job, b); u != nullptr) sorted.push_back(*u);
  result.units = std::move(sorted);
  return result;
}

}  // namespace mettle
