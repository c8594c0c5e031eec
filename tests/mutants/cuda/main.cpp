// Has every planted fault of the CUDA kernels refused by the proof of its op and backend, each in a child process as in
// serving, several side by side on one GPU; before that, all CUDA backends without a fault must pass.
//   mettle_cuda_mutants [--only NAME | --only OP] [--json FILE] [--workers N] [--no-naive]
//   mettle_cuda_mutants --list
// The last line is `caught N of N, false alarms 0`; exit code 0 when that is so.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/subprocess.h"
#include "faults.h"
#include "mettle_planted.h"
#include "prove/candidates.h"
#include "tensor/gpu.h"

namespace mettle::planted {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kSelf[] = "/proc/self/exe";
constexpr int kSilence = 12'000;  // a kernel that hangs
constexpr std::chrono::seconds kNaiveDeadline{10};

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Outcome {
  const Fault* fault = nullptr;
  Verdict verdict;
  double error = 0, ms = 0;
  bool skipped = false;  // the device has no such tactic
  bool naive = false;    // the naive check passes it
  bool fits() const {
    const auto& codes = fault->codes;
    return std::find(codes.begin(), codes.end(), name_of(verdict.code)) != codes.end();
  }
  bool caught() const { return !verdict.ok() && fits(); }
};

struct Wish {
  std::string only, json;
  int workers = 0;
  bool naive = true;
  bool wants(const Fault& f) const { return only.empty() || only == f.name || only == f.op; }
};

class Runner {
 public:
  Runner(const Wish& wish, const Device& device) : wish_(wish), device_(device) {
    for (const Fault& f : faults())
      if (wish.wants(f)) outcomes_.push_back({.fault = &f});
    if (outcomes_.empty()) fail(Code::kInvalidRequest, fmt::format("--only: no fault or op \"{}\"", wish.only));
  }

  void run() {
    const auto begin = Clock::now();
    std::vector<std::function<void()>> jobs;
    for (const Slice& s : slices())
      if (std::any_of(outcomes_.begin(), outcomes_.end(), [&](const Outcome& o) { return o.fault->slice == s.name; }))
        jobs.emplace_back([this, &s] { healthy(s); });
    // Those that may hang first: their silence is waited for while others run.
    std::vector<Outcome*> order;
    for (Outcome& o : outcomes_) order.push_back(&o);
    std::stable_partition(order.begin(), order.end(), [](const Outcome* o) {
      return std::find(o->fault->codes.begin(), o->fault->codes.end(), "HANG") != o->fault->codes.end();
    });
    for (Outcome* o : order) jobs.emplace_back([this, o] { prove_fault(*o); });
    for (Outcome* o : order)
      if (wish_.naive) jobs.emplace_back([this, o] { naive(*o); });
    std::atomic<size_t> next{0};
    std::vector<std::thread> workers;
    for (int w = 0; w < wish_.workers; ++w)
      workers.emplace_back([&] {
        for (size_t i = next++; i < jobs.size(); i = next++) jobs[i]();
      });
    for (std::thread& w : workers) w.join();
    seconds_ = ms_since(begin) / 1e3;
  }

  bool all_well() const { return caught() == judged() && alarms_.empty() && proofs_ > 0 && judged() > 0; }

  void print() const {
    size_t width = 0;
    for (const Outcome& o : outcomes_) width = std::max(width, o.fault->name.size());
    for (const Outcome& o : outcomes_) {
      const char* what = o.skipped ? "skipped" : o.caught() ? "caught" : o.verdict.ok() ? "SURVIVED" : "UNFITTING";
      fmt::print("{:9} {:{}} {:>6.0f} ms {:17} {}\n", what, o.fault->name, width, o.ms, name_of(o.verdict.code),
                 o.verdict.ok() ? "imitates: " + o.fault->about : o.verdict.sentence.substr(0, 200));
    }
    for (const std::string& alarm : alarms_) fmt::print("FALSE ALARM {}\n", alarm);
    fmt::print("{}, {} healthy proofs, {} faults in {:.0f} s\n", device_.model, proofs_, judged(), seconds_);
    if (wish_.naive)
      fmt::print("naive check (5 % of the largest value) passes {} of {}\n",
                 std::count_if(outcomes_.begin(), outcomes_.end(), [](const Outcome& o) { return o.naive; }), judged());
    fmt::print("caught {} of {}, false alarms {}\n", caught(), judged(), alarms_.size());
  }

  std::string json() const {
    using Json = nlohmann::ordered_json;
    Json list = Json::array();
    for (const Outcome& o : outcomes_)
      list.push_back({{"name", o.fault->name},
                      {"op", o.fault->op},
                      {"backend", o.fault->backend},
                      {"tactic", o.fault->tactic},
                      {"slice", o.fault->slice},
                      {"imitates", o.fault->about},
                      {"fitting", o.fault->codes},
                      {"skipped", o.skipped},
                      {"caught", o.caught()},
                      {"verdict", name_of(o.verdict.code)},
                      {"sentence", o.verdict.sentence},
                      {"sigmas", o.error < 1e29 ? Json(o.error) : Json()},
                      {"naive_passes", wish_.naive ? Json(o.naive) : Json()},
                      {"ms", o.ms}});
    const Json all = {{"device", device_.model}, {"seconds", seconds_}, {"healthy_proofs", proofs_},
                      {"caught", caught()},      {"of", judged()},      {"false_alarms", alarms_},
                      {"faults", list}};
    return all.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  }

 private:
  size_t judged() const {
    return static_cast<size_t>(
        std::count_if(outcomes_.begin(), outcomes_.end(), [](const Outcome& o) { return !o.skipped; }));
  }
  size_t caught() const {
    return static_cast<size_t>(
        std::count_if(outcomes_.begin(), outcomes_.end(), [](const Outcome& o) { return !o.skipped && o.caught(); }));
  }

  ProveOptions options(int number) const {
    ProveOptions o;
    o.device = device_;
    o.threads = 2;
    o.time = o.tuned = false;
    o.child_argv = {kSelf, "--child", std::to_string(number)};
    o.cache_folder = "none";
    o.silence_ms = kSilence;
    return o;
  }

  void healthy(const Slice& slice) {
    std::vector<std::string> alarms;
    size_t passed = 0;
    try {
      for (const ProofEntry& e : prove({&slice.problem, 1}, options(0), Candidates::all()).entries) {
        const bool refused =
            info_of(e.verdict.code).refusal && e.cases == 0 && e.verdict.code != VerdictCode::kUnproved;
        passed += e.verdict.ok() ? 1 : 0;
        if (!e.verdict.ok() && !refused)
          alarms.push_back(fmt::format("{}: {} {} {}: {} {}", slice.name, e.op, e.backend, e.tactic,
                                       name_of(e.verdict.code), e.verdict.sentence));
      }
    } catch (const Error& e) {
      alarms.push_back(slice.name + ": " + e.message);
    }
    const std::lock_guard lock(mutex_);
    proofs_ += passed;
    alarms_.insert(alarms_.end(), alarms.begin(), alarms.end());
  }

  void prove_fault(Outcome& outcome) {
    const auto begin = Clock::now();
    const Fault& f = *outcome.fault;
    ProveOptions o = options(f.number);
    o.only_backend = f.backend;
    o.only_tactic = f.tactic;
    try {
      const ProofReport report = prove({&problem_of(f.slice), 1}, o, Candidates::all());
      outcome.skipped = report.entries.empty();
      if (!outcome.skipped)
        outcome.verdict = report.entries.front().verdict, outcome.error = report.entries.front().max_error;
    } catch (const Error& e) {
      outcome.verdict = refuse(VerdictCode::kUnproved, "", "", e.message);
    }
    outcome.ms = ms_since(begin);
  }

  void naive(Outcome& outcome) {
    SubprocessOptions child;
    child.argv = {kSelf, "--naive", std::to_string(outcome.fault->number)};
    child.deadline = kNaiveDeadline;
    const SubprocessResult r = run_subprocess(child);
    outcome.naive = !outcome.skipped && r.end == SubprocessEnd::kExited && r.exit_code == 0 && r.out == "1\n";
  }

  Wish wish_;
  Device device_;
  std::vector<Outcome> outcomes_;
  std::mutex mutex_;
  size_t proofs_ = 0;
  std::vector<std::string> alarms_;
  double seconds_ = 0;
};

int number_of(const std::string& flag, const std::string& text, int most) {
  const bool digits = !text.empty() && text.size() < 6 &&
                      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || std::stoi(text) > most)
    fail(Code::kInvalidRequest, fmt::format("{}: must be 0..{}, is \"{}\"", flag, most, text));
  return std::stoi(text);
}

int list() {
  for (const Fault& f : faults()) {
    problem_of(f.slice);
    for (const std::string& code : f.codes) verdict_code(code);
    fmt::print("{:3} {:38} {} {}/{} {}: {}\n", f.number, f.name, f.op, f.backend, f.tactic, f.slice, f.about);
  }
  fmt::print("{} faults\n", faults().size());
  return 0;
}

int run_with(const std::vector<std::string>& args) {
  const int count = static_cast<int>(faults().size());
  if (args.size() == 2 && args[0] == "--child") {
    if (const int number = number_of("--child", args[1], count); number > 0) {
      gpu::use(0);
      switch_on(number);
    }
    return prove_child();
  }
  if (args.size() == 2 && args[0] == "--naive")
    return naive_child(faults().at(static_cast<size_t>(number_of("--naive", args[1], count)) - 1));
  Wish wish;
  wish.workers = std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 1, 8);
  for (size_t i = 0; i < args.size(); ++i) {
    const auto value = [&]() -> const std::string& {
      if (i + 1 >= args.size()) fail(Code::kInvalidRequest, args[i] + ": needs a value");
      return args[++i];
    };
    if (args[i] == "--list") return list();
    if (args[i] == "--only")
      wish.only = value();
    else if (args[i] == "--json")
      wish.json = value();
    else if (args[i] == "--workers")
      wish.workers = std::max(number_of("--workers", value(), 64), 1);
    else if (args[i] == "--no-naive")
      wish.naive = false;
    else
      fail(Code::kInvalidRequest,
           fmt::format(
               "mettle_cuda_mutants: no \"{}\"; there are --list, --only NAME, --json FILE, --workers N, --no-naive",
               args[i]));
  }
  Runner runner(wish, gpu::device(0));
  runner.run();
  runner.print();
  if (!wish.json.empty()) std::ofstream(wish.json) << runner.json();
  return runner.all_well() ? 0 : 1;
}

}  // namespace
}  // namespace mettle::planted

int main(int argc, char** argv) {
  try {
    return mettle::planted::run_with({argv + 1, argv + argc});
  } catch (const mettle::Error& e) {
    fmt::print(stderr, "{}\n", e.message);
    return 2;
  }
}
