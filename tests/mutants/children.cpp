#include "children.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "healthy.h"
#include "planted.h"

namespace mettle::mutants {
namespace {

constexpr double kNaive = 0.05;  // of the largest value
constexpr int kNaiveRows[] = {1, 7, 64};
constexpr int kNaiveMs = 10'000;

const Geometry& geometry_of(const std::string& name) {
  for (const Geometry& g : geometries())
    if (g.name == name) return g;
  fail(Code::kInvalidRequest, fmt::format("--geometry: no \"{}\"; there are 397b, 35b and fp8_cache", name));
}

// Outputs of a launch, gathered by a backend that runs another.
template <class Op>
struct Tap {
  static inline const Backend<Op>* inner = nullptr;
  static inline Tactic tactic;
  static inline std::vector<float> got;

  static void run(const Tactic&, const typename Op::Args& a, Stream& s) {
    run_with_own_workspace(*inner, tactic, a, s);
    got.clear();
    if constexpr (std::is_same_v<Op, SampleOp>) {
      for (const SampleResult& r : a.results) got.insert(got.end(), {static_cast<float>(r.token), r.logprob});
    } else {
      const Grid g = out_of(a);
      got.assign(g.data, g.data + g.size());
    }
    if constexpr (std::is_same_v<Op, JoinOp>)
      for (int64_t i = 0; i < a.x.shape.elements(); ++i) got.push_back(bf16_to_float(a.x.template as<uint16_t>()[i]));
  }
  static std::vector<float> outputs(Trial<Op>& trial, const Backend<Op>& backend, const Tactic& with, int rows) {
    inner = &backend;
    tactic = with;
    Backend<Op> tap = backend;
    tap.run = run;
    trial.typical_launch(tap, with, rows)();
    return got;
  }
};

bool alike(const std::vector<float>& want, const std::vector<float>& got) {
  float largest = 0, worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::fabs(want[i]));
    if (!std::isfinite(got[i])) return false;
    worst = std::max(worst, std::fabs(want[i] - got[i]));
  }
  return worst <= static_cast<float>(kNaive) * largest;
}

// Runs `check` in a process of its own; false when it dies, hangs or says so.
template <class F>
bool alone(F&& check) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(kNaiveMs / 1000);
    const int null = dup2(2, 1);
    bool ok = false;
    try {
      ok = null >= 0 && check();
    } catch (...) {
    }
    _exit(ok ? 42 : 1);
  }
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 42;
}

template <class Problem>
void naive_of(const Problem& problem) {
  using Op = OpOf<Problem>;
  std::optional<ThreadTeam> team(std::in_place, 1);  // threads would not survive the fork
  const TrialContext context{&*team, 5, [] {}};
  Trial<Op> trial(problem, context);
  const Device device = this_cpu();
  const Backend<Op>& healthy = fast_of<Op>();
  const Tactic tactic = healthy.tactics(problem, device).back();
  std::vector<std::vector<float>> want;
  for (const int rows : kNaiveRows) want.push_back(Tap<Op>::outputs(trial, healthy, tactic, rows));
  const Candidates all = planted([&](const Name& n) { return n.op == Op::kName && shows(n.name, problem); });
  for (const Backend<Op>* b : all.of<Op>()) {
    const bool passes = alone([&] {
      team.emplace(2);
      for (size_t i = 0; i < std::size(kNaiveRows); ++i)
        if (!alike(want[i], Tap<Op>::outputs(trial, *b, tactic, kNaiveRows[i]))) return false;
      return true;
    });
    fmt::print("{} {}\n", b->name, passes ? 1 : 0);
    std::fflush(stdout);
  }
}

template <class Problem>
void healthy_of(const Problem& problem, uint64_t seed) {
  using Op = OpOf<Problem>;
  ThreadTeam team(2);
  const TrialContext context{&team, seed, [] {}};
  Trial<Op> trial(problem, context);
  const Candidates all = healthy();
  for (const Backend<Op>* b : all.of<Op>()) {
    if (!b->supports(problem, this_cpu()).ok()) continue;
    const std::vector<Tactic> tactics = b->tactics(problem, this_cpu());
    // In turn, also for a number of tactics that divides the number of geometries, which take turns by the seed too.
    const Tactic& t = tactics[seed / geometries().size() % tactics.size()];
    ProofEntry entry;
    Verdict verdict;
    try {
      Examination examination(entry);
      trial.prove(*b, t, examination);
      examination.finish();
    } catch (const ProofFailure& f) {
      verdict = f.verdict;
    }
    const nlohmann::json line{{"op", Op::kName},
                              {"backend", b->name},
                              {"tactic", t.name},
                              {"verdict", name_of(verdict.code)},
                              {"sentence", verdict.sentence},
                              {"max_error", entry.max_error},
                              {"group_error", entry.group_error},
                              {"comparisons", entry.comparisons}};
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }
}

}  // namespace

int naive_child(const std::string& op, const std::string& geometry) {
  for (const AnyProblem& any : geometry_of(geometry).problems)
    if (op_name_of(any) == op) std::visit([](const auto& p) { naive_of(p); }, any);
  return 0;
}

int healthy_child(const std::string& geometry, uint64_t seed) {
  for (const AnyProblem& any : geometry_of(geometry).problems)
    std::visit([&](const auto& p) { healthy_of(p, seed); }, any);
  return 0;
}

}  // namespace mettle::mutants
