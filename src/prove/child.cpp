// The child's loop: works through what the parent sends, one line per event on the pipe that was its standard output.
//   in   {"threads", "beside", "seed", "gpu"}, then per problem
//        {"problem", "entries": [{"id", "backend", "tactic", "prove", "time"}]}
//   out  {"hello"}; per entry {"start": id}, {"alive"} ..., {"done": id, "verdict", ...}; then {"timing": id} and
//        {"timed": id, "us": [...], "from_cache"}; at last {"end"}
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/shared_cores.h"
#include "prove/candidates.h"
#include "prove/child_pipe.h"
#include "prove/kept_memory.h"
#include "prove/problem_json.h"
#include "prove/trial.h"

namespace mettle {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

template <class Op>
struct Work {
  int id = 0;
  const Backend<Op>* backend = nullptr;
  Tactic tactic;
  bool prove = true, time = true;
  bool too_slow = false;  // of the race: for more rows
  std::array<double, kRowBuckets.size()> us{};
};

// Every tactic at every bucket, one after the other in rounds, so that a busy moment hits all alike. Other processes
// only ever add time, so the least time of a tactic is what counts. Who is clearly slower than the best is not asked
// about more rows: four times slower at few rows, where another way of reading the weights may yet win, one and a half
// times at many. Of long runs few are enough, and one shows who is clearly slower.
template <class Op>
void race(Trial<Op>& trial, std::vector<Work<Op>>& works, gpu::Stream* gpu, ChildPipe& pipe) {
  constexpr size_t kRounds = 9, kLeastRounds = 3;
  constexpr double kBudgetUs = 2'000, kLongUs = 4'000, kLongestUs = 250'000;
  constexpr int kManyRows = 256;
  constexpr int kReplays = 20;  // launches of a GPU that one run times: what a launch costs the CPU is not the kernel's
  // The reference serves only where nothing else is proved: beside others one time of it is enough.
  const auto is_reference = [](const Work<Op>& w) { return w.backend->name == "reference"; };
  const bool others =
      std::any_of(works.begin(), works.end(), [&](const Work<Op>& w) { return w.time && !is_reference(w); });
  for (size_t b = 0; b < kRowBuckets.size(); ++b) {
    struct Runner {
      Work<Op>* work;
      std::function<void()> launch;
      gpu::Stream* gpu = nullptr;
      int launches = 1;  // of one run
      std::vector<double> us;
      double least = 1e300, spent = 0;
      void run() {
        const auto begin = Clock::now();
        launch();
        if (gpu != nullptr) gpu->wait();
        us.push_back(std::max(ms_since(begin) * 1e3 / launches, 1e-3));
        spent += us.back();
        least = std::min(least, us.back());
      }
    };
    std::vector<Runner> runners;
    for (Work<Op>& w : works) {
      if (!w.time || w.too_slow) continue;
      pipe.send({{"timing", w.id}});
      runners.push_back({&w, trial.typical_launch(*w.backend, w.tactic, kRowBuckets[b]), gpu, 1, {}});
      runners.back().run();  // warms caches and pages
      if (gpu == nullptr) continue;
      Runner& r = runners.back();
      r.run();
      r.launches = static_cast<int>(std::clamp(kBudgetUs / r.least, 1.0, double{kReplays}));
      auto graph = std::make_shared<gpu::Graph>(*gpu, [&] {
        for (int i = 0; i < r.launches; ++i) r.launch();
      });
      // What was recorded points into memory that the recorded launch owns.
      r.launch = [recorded = std::move(r.launch), graph, gpu] { graph->launch(*gpu); };
      r.us.clear(), r.spent = 0, r.least = 1e300;
      r.run();
    }
    double best = 1e300;
    for (Runner& r : runners) {
      if (r.least < kLongUs) r.us.clear(), r.spent = 0, r.least = 1e300;
      best = std::min(best, r.least);
    }
    for (size_t round = 0; round < kRounds; ++round)
      for (Runner& r : runners) {
        const bool enough = r.us.size() >= kLeastRounds && r.spent > kBudgetUs;
        // A run of a few milliseconds may have been a shorter one that waited for a core.
        const size_t least_runs = r.least < kLongUs ? kLeastRounds : r.least < 5 * kLongUs ? 2 : 1;
        const bool told = r.us.size() >= least_runs;
        if (enough || (told && r.least > (r.least < kLongUs ? 2 : 1.25) * best)) continue;
        if (runners.size() > 1) pipe.send({{"timing", r.work->id}});
        r.run();
        best = std::min(best, r.least);
      }
    for (Runner& r : runners) {
      r.work->us[b] = r.least;
      const double next = b + 1 < kRowBuckets.size() ? r.least * kRowBuckets[b + 1] / kRowBuckets[b] : 0;
      r.work->too_slow = (others && is_reference(*r.work)) || r.least > (kRowBuckets[b] < kManyRows ? 4 : 1.5) * best ||
                         next > 4 * kLongestUs || r.least > kLongestUs;
    }
  }
}

json verdict_json(const Verdict& v) {
  return {
      {"verdict", name_of(v.code)}, {"have", v.have}, {"need", v.need}, {"sentence", v.sentence}, {"remedy", v.remedy}};
}

// The verdict of whatever happens while `prove` runs.
template <class F>
Verdict verdict_of(F&& prove) {
  try {
    prove();
    return {};
  } catch (const ProofFailure& failure) {
    return failure.verdict;
  } catch (const std::bad_alloc&) {
    return refuse(VerdictCode::kOutOfMemory, "allocation failed", "");
  } catch (const Error& e) {
    const bool memory = e.code == Code::kDevice;
    if (memory && e.message.starts_with("cuda")) {
      // After a fault the context answers nothing more: this process ends, its last words are the verdict's sentence.
      fmt::print(stderr, "{}\n", e.message);
      std::fflush(stderr);
      std::abort();
    }
    return refuse(memory ? VerdictCode::kOutOfMemory : VerdictCode::kFault, "exception", "a result", e.message);
  } catch (const std::exception& e) {
    return refuse(VerdictCode::kFault, "exception", "a result", fmt::format("threw {}", e.what()));
  } catch (...) {
    return refuse(VerdictCode::kFault, "exception", "a result", "threw something that is no exception");
  }
}

template <class Problem>
void work_on(const Problem& problem, const json& entries, const Candidates& candidates, const Device& device,
             TrialContext context, ChildPipe& pipe) {
  using Op = OpOf<Problem>;
  std::vector<Work<Op>> works;
  for (const json& e : entries) {
    Work<Op> w;
    w.id = e.at("id").get<int>();
    w.prove = e.at("prove").get<bool>();
    w.time = e.at("time").get<bool>();
    const Choice<Op> named =
        candidate_named<Op>(candidates, problem, device, e.at("backend").get_ref<const std::string&>(),
                            e.at("tactic").get_ref<const std::string&>());
    w.backend = named.backend;
    w.tactic = named.tactic;
    works.push_back(w);
  }
  context.proves = std::any_of(works.begin(), works.end(), [](const Work<Op>& w) { return w.prove; });
  bool from_cache = false;
  context.on_no_room = [&from_cache] { from_cache = true; };
  std::unique_ptr<Trial<Op>> trial;
  for (Work<Op>& w : works) {
    if (!w.prove) continue;
    pipe.send({{"start", w.id}});
    const auto begin = Clock::now();
    ProofEntry entry;
    entry.bound = judge::kElement;
    const Verdict verdict = verdict_of([&] {
      if (trial == nullptr) trial = std::make_unique<Trial<Op>>(problem, context);
      Examination examination(entry);
      trial->prove(*w.backend, w.tactic, examination);
      examination.finish();
    });
    w.time = w.time && verdict.ok();
    json event = verdict_json(verdict);
    event["done"] = w.id;
    event["max_error"] = entry.max_error;
    event["bound"] = entry.bound;
    event["group_error"] = entry.group_error;
    event["comparisons"] = entry.comparisons;
    event["cases"] = entry.cases;
    event["ms"] = ms_since(begin);
    pipe.send(event);
  }
  if (std::none_of(works.begin(), works.end(), [](const Work<Op>& w) { return w.time; })) return;
  if (trial == nullptr) trial = std::make_unique<Trial<Op>>(problem, context);
  race(*trial, works, context.gpu, pipe);
  for (const Work<Op>& w : works)
    if (w.time) pipe.send({{"timed", w.id}, {"us", w.us}, {"from_cache", from_cache}});
}

}  // namespace

int prove_child(const Candidates& candidates) {
  ChildPipe pipe;
  const json head = next_job("prove --child");
  if (head.is_null()) fail(Code::kInvalidRequest, "prove --child: reads problems from standard input, got none");
  const int gpu_index = head.value("gpu", -1);
  limit_child(gpu_index >= 0);
  Device device = this_cpu();
  std::unique_ptr<gpu::Stream> gpu;
  if (gpu_index >= 0) {
    device = gpu::device(gpu_index);
    gpu::use(gpu_index);
    gpu::share_buffers();
    gpu = std::make_unique<gpu::Stream>();
  } else {
    keep_memory();
  }
  if (head.value("beside", false)) share_cores();
  ThreadTeam team(std::clamp(head.value("threads", 1), 1, 1024));
  const TrialContext context{.team = &team,
                             .seed = head.value("seed", uint64_t{1}),
                             .alive = [&pipe] { pipe.alive(); },
                             .gpu = gpu.get(),
                             .copies = gpu != nullptr ? &gpu::place : TrialContext::MakePlace{}};
  pipe.send({{"hello", true}});
  for (json job = next_job("prove --child"); !job.is_null(); job = next_job("prove --child")) {
    const AnyProblem problem = problem_from_json(job.at("problem"));
    std::visit([&](const auto& p) { work_on(p, job.at("entries"), candidates, device, context, pipe); }, problem);
  }
  pipe.send({{"end", true}});
  return 0;
}

int prove_child() { return prove_child(Candidates::all()); }

}  // namespace mettle
