#include "prove/prover.h"

#include <fmt/format.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/subprocess.h"
#include "prove/candidates.h"
#include "prove/problem_json.h"
#include "prove/store.h"
#include "prove/tune.h"

namespace mettle {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr int kDeadlineHours = 2;
constexpr size_t kOutputLimit = size_t{256} << 20;

// An entry and what is still to be done for it.
struct Item {
  ProofEntry entry;
  size_t problem = 0;
  bool prove = false, time = false;
  bool open() const { return prove || time; }
  size_t parts() const { return size_t{prove} + size_t{time}; }
};

// Refusals are final, the rest is to be proved.
void list_items(const AnyProblem& problem, size_t index, const ProveOptions& options, const Candidates& candidates,
                std::vector<Item>& items) {
  if (!options.only_op.empty() && options.only_op != op_name_of(problem)) return;
  for (ProofEntry& entry : list_candidates(problem, options.device, candidates)) {
    if (!options.only_backend.empty() && options.only_backend != entry.backend) continue;
    if (!options.only_tactic.empty() && options.only_tactic != entry.tactic) continue;
    const bool open = entry.verdict.code == VerdictCode::kUnproved;
    items.push_back({.entry = std::move(entry), .problem = index, .prove = open, .time = open && options.time});
  }
}

// What the children of several runs tell, one at a time.
struct Progressing {
  VerdictStore& store;
  std::mutex mutex = {};
  size_t done = 0, total = 0;  // proofs and timings
};

// Works through some of the problems, proving and timing or only one of both.
struct Phase {
  std::vector<size_t> problems;
  bool prove = true, time = true;
  bool beside = false;  // another child works on the same cores
  int threads = 1;
};

class Run {
 public:
  Run(std::span<const AnyProblem> problems, const ProveOptions& options, std::vector<Item>& items, Phase phase,
      Progressing& progress)
      : problems_(problems), options_(options), items_(items), phase_(std::move(phase)), progress_(progress) {}

  // Children until nothing is open: each death settles at least one entry.
  void work() {
    while (std::any_of(items_.begin(), items_.end(), [&](const Item& i) { return open(i); })) {
      current_ = nullptr;
      ended_ = false;
      const SubprocessResult result = run_child();
      if (ended_) {
        for (Item& i : items_)
          if (open(i))
            settle(i, refuse(VerdictCode::kFault, "no report", "a report", "the child ended without a report"));
        return;
      }
      if (!hello_)
        fail(Code::kDevice,
             fmt::format("prove: the child did not start: {}; its last words: {}", how(result), last_line(result.err)));
      if (current_ == nullptr)
        for (Item& i : items_)
          if (open(i)) {
            current_ = &i;
            break;
          }
      if (current_ == nullptr) return;
      settle(*current_, death(result));
    }
  }

 private:
  bool open(const Item& item) const {
    if (std::find(phase_.problems.begin(), phase_.problems.end(), item.problem) == phase_.problems.end()) return false;
    return (phase_.prove && item.prove) || (phase_.time && item.time && (phase_.prove || !item.prove));
  }

  std::string input() const {
    const int gpu = options_.device.kind == DeviceKind::kCuda ? options_.device.index : -1;
    std::string text =
        json{{"threads", phase_.threads}, {"beside", phase_.beside}, {"seed", options_.seed}, {"gpu", gpu}}.dump() +
        "\n";
    for (size_t p = 0; p < problems_.size(); ++p) {
      json entries = json::array();
      for (size_t i = 0; i < items_.size(); ++i) {
        const Item& item = items_[i];
        if (item.problem == p && open(item))
          entries.push_back({{"id", i},
                             {"backend", item.entry.backend},
                             {"tactic", item.entry.tactic},
                             {"prove", item.prove},
                             {"time", item.time && phase_.time}});
      }
      if (!entries.empty()) text += json{{"problem", to_json(problems_[p])}, {"entries", entries}}.dump() + "\n";
    }
    return text;
  }

  SubprocessResult run_child() {
    SubprocessOptions child;
    child.argv = options_.child_argv;
    if (child.argv.empty()) child.argv = {"/proc/self/exe", "prove", "--child"};
    child.input = input();
    child.deadline = std::chrono::hours(kDeadlineHours);
    child.silence = milliseconds(options_.silence_ms);
    child.output_limit = kOutputLimit;
    child.on_line = [this](std::string_view line) { on_line(line); };
    return run_subprocess(child);
  }

  Item* item_of(const json& event, const char* key) {
    const json& id = event.at(key);
    if (!id.is_number_unsigned() || id.get<size_t>() >= items_.size()) return nullptr;
    Item& item = items_[id.get<size_t>()];
    return open(item) ? &item : nullptr;
  }

  // Anything that is not an event of the protocol is ignored: it proves nothing.
  void on_line(std::string_view line) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object()) return;
    try {
      if (event.contains("hello")) hello_ = true;
      if (event.contains("end")) ended_ = true;
      if (event.contains("start")) begin(item_of(event, "start"));
      if (event.contains("timing")) begin(item_of(event, "timing"));
      if (event.contains("done")) done(event);
      if (event.contains("timed")) {
        if (Item* item = item_of(event, "timed"); item != nullptr && !item->prove) {
          item->entry.us = event.at("us").get<std::array<double, kRowBuckets.size()>>();
          item->entry.timed_from_cache = event.value("from_cache", false);
          item->time = false;
          settled(*item, 1);
        }
      }
    } catch (const std::exception& e) {
      log::debug("prove: a line of the child is ignored: {}", e.what());
    }
  }

  void begin(Item* item) {
    current_ = item;
    if (item != nullptr) report(*item, 0);
  }

  void done(const json& event) {
    Item* item = item_of(event, "done");
    if (item == nullptr || item != current_ || !item->prove) return;
    ProofEntry e = item->entry;
    e.verdict = {verdict_code(event.at("verdict").get_ref<const std::string&>()), event.at("have"), event.at("need"),
                 event.at("sentence"), event.at("remedy")};
    e.max_error = event.at("max_error");
    e.bound = event.at("bound");
    e.group_error = event.at("group_error");
    e.comparisons = event.at("comparisons");
    e.cases = event.at("cases");
    e.ms = event.at("ms");
    if (e.verdict.ok() && !(e.comparisons > 0 && e.max_error <= e.bound && e.group_error <= 1))
      e.verdict = refuse(VerdictCode::kUnproved, fmt::format("{} comparisons, error {}", e.comparisons, e.max_error),
                         "comparisons within the bound", "reported success without showing it");
    const size_t open = item->parts();
    item->entry = std::move(e);
    item->prove = false;
    item->time = item->time && item->entry.verdict.ok();
    current_ = nullptr;
    settled(*item, open - item->parts());
  }

  void settle(Item& item, Verdict verdict) {
    const size_t open = item.parts();
    item.entry.verdict = std::move(verdict);
    item.entry.us = {};
    item.prove = item.time = false;
    settled(item, open);
  }

  // A verdict is kept as soon as it is there: who is killed goes on from it at the next start.
  void settled(const Item& item, size_t done) {
    {
      const std::lock_guard lock(progress_.mutex);
      progress_.store.keep(item.entry, options_.threads);
    }
    report(item, done);
  }

  void report(const Item& item, size_t done) {
    const std::lock_guard lock(progress_.mutex);
    progress_.done += done;
    if (options_.on_progress) options_.on_progress(progress_.done, progress_.total, item.entry);
  }

  static std::string how(const SubprocessResult& r) {
    switch (r.end) {
      case SubprocessEnd::kExited:
        return fmt::format("exit code {}", r.exit_code);
      case SubprocessEnd::kSignaled: {
        const char* name = sigabbrev_np(r.signal);
        return name != nullptr ? fmt::format("signal SIG{}", name) : fmt::format("signal {}", r.signal);
      }
      case SubprocessEnd::kDeadline:
        return "deadline";
      case SubprocessEnd::kSilence:
        return "silence";
      case SubprocessEnd::kOutputLimit:
        return "output limit";
    }
    return "?";
  }

  static std::string last_line(std::string text) {
    while (!text.empty() && text.back() == '\n') text.pop_back();
    const size_t at = text.rfind('\n');
    return at == std::string::npos ? text : text.substr(at + 1);
  }

  Verdict death(const SubprocessResult& r) const {
    const std::string words = last_line(r.err),
                      tail = words.empty() ? "" : fmt::format("; its last words: {:.300}", words);
    if (r.end == SubprocessEnd::kSilence || r.end == SubprocessEnd::kDeadline)
      return refuse(VerdictCode::kHang, how(r), fmt::format("a sign within {} ms", options_.silence_ms),
                    fmt::format("silent for {} ms and ended{}", options_.silence_ms, tail));
    if (r.end == SubprocessEnd::kExited)
      return refuse(VerdictCode::kFault, how(r), "a report",
                    fmt::format("ended the process with exit code {} in the middle of its proof{}", r.exit_code, tail));
    return refuse(VerdictCode::kFault, how(r), "a report", fmt::format("ended by {}{}", how(r), tail));
  }

  std::span<const AnyProblem> problems_;
  const ProveOptions& options_;
  std::vector<Item>& items_;
  Phase phase_;
  Progressing& progress_;
  Item* current_ = nullptr;
  bool hello_ = false, ended_ = false;
};

// Works through the phases in their order, so many children side by side; the first failure to start one is the failure
// of all.
void work_side_by_side(std::span<const AnyProblem> problems, const ProveOptions& options, std::vector<Item>& items,
                       Progressing& progress, const std::vector<Phase>& phases, int children) {
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  std::vector<std::thread> threads;
  for (int i = 0; i < children; ++i)
    threads.emplace_back([&] {
      try {
        for (size_t at = next++; at < phases.size(); at = next++)
          Run(problems, options, items, phases[at], progress).work();
      } catch (...) {
        next = phases.size();
        const std::lock_guard lock(progress.mutex);
        error = std::current_exception();
      }
    });
  for (std::thread& t : threads) t.join();
  if (error) std::rethrow_exception(error);
}

// Proofs only. On a GPU a child's threads compute what is expected and no backend: they are dealt out, and each child
// has its part of the problems. On a CPU a backend is proved with the team that will serve; but much of a proof is one
// thread's work, so a second child keeps the other cores busy, problem by problem. Times are taken later, alone.
void prove_side_by_side(std::span<const AnyProblem> problems, const ProveOptions& options, std::vector<Item>& items,
                        Progressing& progress) {
  const bool gpu = options.device.kind == DeviceKind::kCuda;
  std::vector<size_t> open;
  std::map<size_t, int> tactics;  // of a problem
  for (const Item& item : items)
    if (item.prove && tactics[item.problem]++ == 0) open.push_back(item.problem);
  // What takes longest comes first, so that none is left alone with it at the end.
  if (!gpu) std::stable_sort(open.begin(), open.end(), [&](size_t a, size_t b) { return tactics[a] > tactics[b]; });
  const int most = gpu ? std::clamp(options.threads / 2, 1, 8) : std::min(options.threads, 2);
  const int children = std::min(most, static_cast<int>(open.size()));
  if (children < 1 || (children == 1 && !gpu)) return;
  std::vector<Phase> phases(gpu ? static_cast<size_t>(children) : open.size());
  for (size_t i = 0; i < open.size(); ++i) phases[i % phases.size()].problems.push_back(open[i]);
  for (Phase& phase : phases) {
    phase.time = false;
    phase.beside = !gpu && children > 1;
    phase.threads = gpu ? std::max(options.threads / children, 1) : options.threads;
  }
  work_side_by_side(problems, options, items, progress, phases, children);
}

}  // namespace

ProofReport prove(std::span<const AnyProblem> problems, const ProveOptions& options, const Candidates& candidates) {
  ProofReport report{options.device.model, build_id(), {}, options.device};
  std::vector<Item> items;
  std::set<std::string> seen;  // layers of a model share their problems
  for (size_t i = 0; i < problems.size(); ++i)
    if (seen.insert(text_of(problems[i])).second) list_items(problems[i], i, options, candidates, items);

  const std::string folder = options.cache_folder.empty() ? default_cache_folder() : options.cache_folder;
  VerdictStore store(folder, report.build, options.device);
  for (Item& item : items) {
    bool timed = false;
    if (!item.prove || options.reprove || !store.find(item.entry, options.threads, &timed)) continue;
    item.prove = false;
    item.time = options.time && item.entry.verdict.ok() && !timed;
  }
  Progressing progress{store};
  for (const Item& item : items) progress.total += item.parts();
  prove_side_by_side(problems, options, items, progress);
  Phase rest{.threads = options.threads};
  rest.problems.resize(problems.size());
  std::iota(rest.problems.begin(), rest.problems.end(), size_t{0});
  Run(problems, options, items, std::move(rest), progress).work();
  for (const Item& item : items) report.entries.push_back(item.entry);
  store.save();
  if (options.tuned) apply_tuning(folder, options.threads, report);
  return report;
}

ProofReport prove(std::span<const AnyProblem> problems, const ProveOptions& options) {
  return prove(problems, options, Candidates::all());
}

const ProofEntry* ProofReport::find(const std::string& problem, std::string_view backend,
                                    std::string_view tactic) const {
  for (const ProofEntry& e : entries)
    if (e.problem == problem && e.backend == backend && e.tactic == tactic) return &e;
  return nullptr;
}

bool all_proved(const ProofReport& report) {
  std::map<std::string, bool> proved;
  for (const ProofEntry& e : report.entries) {
    const bool ok = e.verdict.ok();
    proved[e.problem] = proved[e.problem] || ok;
    if (!ok && (!info_of(e.verdict.code).refusal || e.verdict.code == VerdictCode::kUnproved)) return false;
  }
  return !proved.empty() && std::all_of(proved.begin(), proved.end(), [](const auto& p) { return p.second; });
}

std::string default_cache_folder() {
  const auto from = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr && value[0] == '/' ? value : "");
  };
  if (const std::string xdg = from("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/mettle";
  std::string home = from("HOME");
  if (home.empty())
    if (const passwd* user = getpwuid(getuid()); user != nullptr && user->pw_dir != nullptr) home = user->pw_dir;
  return home.empty() ? "none" : home + "/.cache/mettle";
}

}  // namespace mettle
