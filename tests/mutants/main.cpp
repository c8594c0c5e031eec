// Has every planted fault convicted by the prover, with each of them in a child process as in serving; then lets the
// healthy backends pass with other seeds.
//   mutants --all | --third K | --only OP[/NAME] | --healthy RUNS    [--healthy RUNS] [--each] [--markdown FILE]
//           [--json FILE]
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/subprocess.h"
#include "children.h"
#include "planted.h"
#include "report.h"

namespace mettle::mutants {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kSelf[] = "/proc/self/exe";
constexpr int kSilence = 15'000;  // a child that hangs
constexpr int kWorkers = 2;
constexpr uint64_t kFirstSeed = 100;

struct Wish {
  std::string only_op, only_name, markdown, json;
  int third = -1, healthy = 0;
  bool each = false, no_faults = false, all = false;
  bool wants(const Name& n, size_t index) const {
    if (no_faults) return false;
    if (!only_op.empty() && n.op != only_op) return false;
    if (!only_name.empty() && n.name != only_name) return false;
    return third < 0 || static_cast<int>(index % 3) == third;
  }
};

class Runner {
 public:
  explicit Runner(const Wish& wish) : wish_(wish) {
    const std::vector<Name> all = all_faults();
    for (size_t i = 0; i < all.size(); ++i)
      if (wish.wants(all[i], i)) chosen_.push_back(all[i]);
  }

  Score run() {
    std::vector<std::function<void()>> jobs;
    for (const Geometry& g : geometries())
      for (const AnyProblem& p : g.problems) jobs.emplace_back([this, &g, &p] { faults(g, p); });
    for (int i = 0; i < wish_.healthy; ++i) jobs.emplace_back([this, i] { healthy(i); });
    std::atomic<size_t> next{0};
    std::vector<std::thread> workers;
    for (int w = 0; w < kWorkers; ++w)
      workers.emplace_back([&] {
        for (size_t i = next++; i < jobs.size(); i = next++) jobs[i]();
      });
    for (std::thread& w : workers) w.join();
    return std::move(score_);
  }

 private:
  bool chosen(const Name& n) const { return std::find(chosen_.begin(), chosen_.end(), n) != chosen_.end(); }

  void faults(const Geometry& g, const AnyProblem& problem) {
    const std::string op(op_name_of(problem));
    const auto wanted = [&](const Name& n) { return n.op == op && chosen(n) && shows(n.name, problem); };
    if (std::none_of(chosen_.begin(), chosen_.end(), wanted)) return;
    const auto begin = Clock::now();
    Candidates candidates;
    {
      const std::lock_guard lock(mutex_);
      candidates = planted(wanted);
    }
    ProveOptions options;
    options.device = this_cpu();
    options.threads = 2;
    options.time = false;
    options.child_argv = {kSelf, "--child"};
    options.cache_folder = "none";
    options.silence_ms = kSilence;
    const ProofReport report = prove({&problem, 1}, options, candidates);
    const std::set<std::string> passed = naive(g, op);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const std::lock_guard lock(mutex_);
    for (const ProofEntry& e : report.entries)
      score_.results.push_back(
          {e.op, e.backend, std::string(g.name), e.verdict, e.max_error, e.group_error, passed.contains(e.backend)});
    fmt::print("{} {}: {} faults in {:.0f} s\n", g.name, op, report.entries.size(), seconds);
    std::fflush(stdout);
  }

  static std::set<std::string> naive(const Geometry& g, const std::string& op) {
    SubprocessOptions child;
    child.argv = {kSelf, "--naive", op, std::string(g.name)};
    child.deadline = std::chrono::minutes(10);
    std::set<std::string> passed;
    child.on_line = [&](std::string_view line) {
      if (line.ends_with(" 1")) passed.emplace(line.substr(0, line.size() - 2));
    };
    const SubprocessResult r = run_subprocess(child);
    if (r.end != SubprocessEnd::kExited || r.exit_code != 0)
      fail(Code::kInternal, fmt::format("mutants: the naive check of {} ended early: {}", op, r.err));
    return passed;
  }

  void healthy(int number) {
    const Geometry& g = geometries()[static_cast<size_t>(number) % geometries().size()];
    const uint64_t seed = kFirstSeed + static_cast<uint64_t>(number);
    SubprocessOptions child;
    child.argv = {kSelf, "--healthy-child", std::string(g.name), std::to_string(seed)};
    child.deadline = std::chrono::minutes(10);
    std::vector<HealthyResult> own;
    child.on_line = [&](std::string_view line) {
      const auto j = nlohmann::json::parse(line, nullptr, false);
      if (!j.is_object()) return;
      HealthyResult h{j.at("op"), j.at("backend"),   j.at("tactic"),     std::string(g.name), seed,
                      {},         j.at("max_error"), j.at("group_error")};
      h.verdict.code = verdict_code(j.at("verdict").get_ref<const std::string&>());
      h.verdict.sentence = j.at("sentence");
      h.passed = h.verdict.ok() && j.at("comparisons").get<uint64_t>() > 0;
      own.push_back(h);
    };
    const auto begin = Clock::now();
    const SubprocessResult r = run_subprocess(child);
    if (r.end != SubprocessEnd::kExited || r.exit_code != 0)
      own.push_back({"all", "?", "?", std::string(g.name), seed,
                     refuse(VerdictCode::kFault, "a death", "an end", "the process of a healthy run died: " + r.err)});
    const std::lock_guard lock(mutex_);
    score_.healthy.insert(score_.healthy.end(), own.begin(), own.end());
    fmt::print("{} healthy, seed {}: {} proofs in {:.0f} s\n", g.name, seed, own.size(),
               std::chrono::duration<double>(Clock::now() - begin).count());
    std::fflush(stdout);
  }

  Wish wish_;
  std::vector<Name> chosen_;
  std::mutex mutex_;
  Score score_;
};

int number_of(const char* flag, const std::string& text, int least, int most) {
  size_t end = 0;
  int value = least - 1;
  try {
    value = std::stoi(text, &end);
  } catch (const std::exception&) {
  }
  if (end != text.size() || value < least || value > most)
    fail(Code::kInvalidRequest, fmt::format("{}: must be {}..{}, is \"{}\"", flag, least, most, text));
  return value;
}

// Tactics of this machine that no healthy run has proved, by op, backend, tactic and geometry.
std::set<std::string> unmet(const std::vector<HealthyResult>& results) {
  std::set<std::string> met, out;
  const auto key = [](std::string_view op, std::string_view backend, std::string_view tactic, std::string_view where) {
    return fmt::format("{} {} {} at {}", op, backend, tactic, where);
  };
  for (const HealthyResult& h : results) met.insert(key(h.op, h.backend, h.tactic, h.geometry));
  const Candidates all = healthy();
  for (const Geometry& g : geometries())
    for (const AnyProblem& any : g.problems)
      std::visit(
          [&](const auto& p) {
            using Op = OpOf<std::decay_t<decltype(p)>>;
            for (const Backend<Op>* b : all.of<Op>()) {
              if (!b->supports(p, this_cpu()).ok()) continue;
              for (const Tactic& t : b->tactics(p, this_cpu()))
                if (std::string k = key(Op::kName, b->name, t.name, g.name); !met.contains(k)) out.insert(std::move(k));
            }
          },
          any);
  return out;
}

// All tactics of the healthy backends of one op at one geometry: 0 when all are proved. For tests/mutants/auto, which
// builds this program with a changed backend. The reference may refuse no shape.
int prove_healthy(const std::string& op, const std::string& geometry) {
  ProveOptions options;
  options.device = this_cpu();
  options.threads = 2;
  options.time = false;
  options.child_argv = {kSelf, "--healthy-backends"};
  options.cache_folder = "none";
  options.silence_ms = kSilence;
  int failed = 0;
  std::vector<Geometry> all = geometries();
  all.push_back(odd_shapes());
  for (const Geometry& g : all)
    for (const AnyProblem& p : g.problems) {
      if (g.name != geometry || op_name_of(p) != op) continue;
      for (const ProofEntry& e : prove({&p, 1}, options, healthy()).entries) {
        if (e.verdict.ok() || (info_of(e.verdict.code).refusal && e.backend != "reference")) continue;
        ++failed;
        fmt::print("{} {} {}: {} {}\n", e.op, e.backend, e.tactic, name_of(e.verdict.code), e.verdict.sentence);
      }
    }
  return failed == 0 ? 0 : 1;
}

int run_with(const std::vector<std::string>& args) {
  Wish wish;
  bool what = false;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& flag = args[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 >= args.size()) fail(Code::kInvalidRequest, fmt::format("{}: needs a value", flag));
      return args[++i];
    };
    if (flag == "--all") {
      what = wish.all = true;
      wish.healthy = 50;
    } else if (flag == "--third") {
      what = true;
      wish.third = number_of("--third", value(), 0, 2);
      wish.healthy = 2;
    } else if (flag == "--only") {
      what = true;
      const std::string& name = value();
      const size_t slash = name.find('/');
      wish.only_op = name.substr(0, slash);
      if (slash != std::string::npos) wish.only_name = name.substr(slash + 1);
    } else if (flag == "--healthy") {
      wish.no_faults = !what;
      what = true;
      wish.healthy = number_of("--healthy", value(), 0, 10'000);
    } else if (flag == "--each") {
      wish.each = true;
    } else if (flag == "--markdown") {
      wish.markdown = value();
    } else if (flag == "--json") {
      wish.json = value();
    } else {
      fail(Code::kInvalidRequest,
           fmt::format("mutants: no \"{}\"; there are --all, --third K, --only OP[/NAME], --healthy RUNS, --each, "
                       "--markdown FILE, --json FILE",
                       flag));
    }
  }
  if (!what) fail(Code::kInvalidRequest, "mutants: say --all, --third K or --only OP[/NAME]");
  std::map<std::string, size_t> of_op;
  for (const Name& n : all_faults()) ++of_op[std::string(n.op)];
  if (const std::string missing = missing_faults(of_op); !missing.empty())
    fail(Code::kInternal, fmt::format("mutants: {}", missing));
  const Score score = Runner(wish).run();
  if (score.results.empty() && score.healthy.empty()) fail(Code::kInvalidRequest, "mutants: no fault has that name");
  const bool too_easy = wish.all && !score.hard_to_see();
  if (too_easy) fmt::print("too easy: the naive check must pass at least half of the faults\n");
  const std::set<std::string> missed = wish.all ? unmet(score.healthy) : std::set<std::string>{};
  for (const std::string& m : missed) fmt::print("no healthy run proved {}\n", m);
  print(score, wish.each);
  if (!wish.markdown.empty()) std::ofstream(wish.markdown) << markdown(score);
  if (!wish.json.empty()) std::ofstream(wish.json) << json(score);
  return score.all_well() && !too_easy && missed.empty() ? 0 : 1;
}

}  // namespace
}  // namespace mettle::mutants

int main(int argc, char** argv) {
  using namespace mettle;
  const std::vector<std::string> args(argv + 1, argv + argc);
  try {
    if (args.size() == 1 && args[0] == "--child")
      return prove_child(mutants::planted([](const mutants::Name&) { return true; }));
    if (args.size() == 1 && args[0] == "--healthy-backends") return prove_child(mutants::healthy());
    if (args.size() == 3 && args[0] == "--prove") return mutants::prove_healthy(args[1], args[2]);
    if (args.size() == 3 && args[0] == "--naive") return mutants::naive_child(args[1], args[2]);
    if (args.size() == 3 && args[0] == "--healthy-child") return mutants::healthy_child(args[1], std::stoull(args[2]));
    return mutants::run_with(args);
  } catch (const Error& e) {
    fmt::print(stderr, "{}\n", e.message);
    return 2;
  }
}
