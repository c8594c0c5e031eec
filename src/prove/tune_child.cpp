// The child that measures. One line in for each problem, one line out for each of its buckets:
//   in   {"threads", "seed", "gpu", "seconds", "units"}, then per problem {"problem", "index", "entries": [{"id",
//        "backend", "tactic"}], "buckets": [{"bucket", "untuned": id, "ids": [id...]}]}
//   out  {"hello"}; {"timing": id} before its launches; per bucket {"unit": index, "bucket", "times": [[id, us, noise,
//        samples]...], "other": id, "again": [[us, noise, samples] of it and of the untuned one], "from_cache"};
//        {"out_of_time"}; {"end"}
// `other` is the fastest when it is not the untuned choice; both are then measured again, apart from the samples that
// made it look the fastest.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "prove/candidates.h"
#include "prove/child_pipe.h"
#include "prove/problem_json.h"
#include "prove/trial.h"
#include "prove/tune.h"

namespace mettle {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kRounds = 25, kLeastRounds = 3, kRoundsAgain = 15, kLeastAgain = 5;
constexpr double kSampleUs = 50;  // short launches are timed several at a time
constexpr double kMostLaunches = 1'000;
constexpr double kSampleUsGpu = 2'000;
constexpr double kMostLaunchesGpu = 20;  // recorded in a graph: what a launch costs the CPU is not the kernel's
constexpr double kHopeless = 1.5;        // so many times slower than the best: a few samples tell
constexpr double kLongUs = 5'000;        // launches that cost real time
constexpr double kToldUs = 2'000;
constexpr double kUnitSeconds = 2;  // of one bucket at most, however large the budget

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// What is left of the budget, and how much of it the next bucket may take.
class Budget {
 public:
  Budget(double seconds, int units) : us_(seconds * 1e6), units_(units) {}
  double left_us() const { return us_ - us_since(begin_); }
  double share_us() { return std::min(left_us() / std::max(units_--, 1), kUnitSeconds * 1e6); }

 private:
  Clock::time_point begin_ = Clock::now();
  double us_;
  int units_;
};

struct Runner {
  int id = 0;
  std::function<void()> launch;
  gpu::Stream* gpu = nullptr;
  int launches = 1;  // of one sample
  std::vector<double> us;
  double least = 1e300;
  bool serves = true;  // the reference does so only when nothing else is proved

  double once() {
    const auto begin = Clock::now();
    for (int i = 0; i < (gpu == nullptr ? launches : 1); ++i) launch();
    if (gpu != nullptr) gpu->wait();
    const double one = std::max(us_since(begin) / launches, 1e-3);
    least = std::min(least, one);
    return one;
  }
  void sample() { us.push_back(once()); }

  double median() const {
    std::vector<double> v = us;
    const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
    std::nth_element(v.begin(), middle, v.end());
    return *middle;
  }
  // Median distance from the median, as a part of it, scaled to a standard deviation.
  double noise() const {
    const double m = median();
    std::vector<double> v;
    for (const double x : us) v.push_back(std::abs(x - m));
    const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
    std::nth_element(v.begin(), middle, v.end());
    return 1.4826 * *middle / m;
  }
  json figures() const { return {median(), noise(), us.size()}; }
};

// Warms it and settles how many launches make a sample. Launches of a GPU are recorded.
void prepare(Runner& r) {
  r.once();
  if (r.least < kLongUs) r.once();
  const double wanted = r.gpu != nullptr ? kSampleUsGpu : kSampleUs;
  r.launches = static_cast<int>(std::clamp(wanted / r.least, 1.0, r.gpu ? kMostLaunchesGpu : kMostLaunches));
  if (r.gpu != nullptr) {
    auto graph = std::make_shared<gpu::Graph>(*r.gpu, [&r] {
      for (int i = 0; i < r.launches; ++i) r.launch();
    });
    // What was recorded points into memory that the recorded launch owns.
    r.launch = [recorded = std::move(r.launch), graph, gpu = r.gpu] { graph->launch(*gpu); };
    r.once();
  }
}

// Rounds over all of them, every second one backwards, so that no one always follows the same other.
template <class Wants>
void rounds(std::vector<Runner*> runners, size_t most, ChildPipe& pipe, const Wants& wants) {
  for (size_t round = 0; round < most; ++round) {
    bool any = false;
    for (Runner* r : runners) {
      if (!wants(*r)) continue;
      // A short one has shown already that it comes back, and a parent that reads takes a core from what is timed.
      if (r->least > kToldUs) pipe.send({{"timing", r->id}});
      r->sample();
      any = true;
    }
    if (!any) return;
    std::reverse(runners.begin(), runners.end());
  }
}

template <class Op>
struct Entry {
  int id = 0;
  const Backend<Op>* backend = nullptr;
  Tactic tactic;
};

// False: the time is up, this bucket was not measured.
template <class Op>
bool measure(Trial<Op>& trial, const std::vector<Entry<Op>>& entries, const json& bucket, int index, Budget& budget,
             gpu::Stream* gpu, const bool& from_cache, ChildPipe& pipe) {
  if (budget.left_us() <= 0) return false;
  const double share = budget.share_us();
  const auto at = bucket.at("bucket").get<size_t>();
  const int untuned = bucket.at("untuned").get<int>();
  const auto ids = bucket.at("ids").get<std::vector<int>>();
  std::vector<std::unique_ptr<Runner>> runners;
  double best = 1e300;
  for (const int id : ids) {  // the untuned choice comes first: it tells what a launch may cost
    const auto e = std::find_if(entries.begin(), entries.end(), [&](const Entry<Op>& x) { return x.id == id; });
    if (e == entries.end()) fail(Code::kInvalidRequest, fmt::format("tune --child: no entry {}", id));
    pipe.send({{"timing", id}});
    auto r = std::make_unique<Runner>();
    r->id = id;
    r->gpu = gpu;
    r->serves = id == untuned || e->backend->name != "reference";
    r->launch = trial.typical_launch(*e->backend, e->tactic, kRowBuckets.at(at));
    prepare(*r);
    best = std::min(best, r->least);
    const double few = static_cast<double>(kLeastRounds * ids.size());
    if (id == untuned && few * r->least > budget.left_us()) return false;
    // Hopeless and dear: what warmed it is its sample.
    if (r->least > kLongUs && r->least > 2 * kHopeless * best) {
      r->us.push_back(r->least);
      r->launch = {};
    }
    runners.push_back(std::move(r));
  }
  std::vector<Runner*> all;
  for (const auto& r : runners)
    if (r->launch) all.push_back(r.get());
  const auto begin = Clock::now();
  rounds(all, kRounds, pipe, [&](const Runner& r) {
    if (r.us.size() < kLeastRounds) return true;
    best = std::min(best, r.least);
    return us_since(begin) < share / 2 && r.least < kHopeless * best;
  });
  Runner* fastest = nullptr;
  for (Runner* r : all)
    if (r->serves && (fastest == nullptr || r->median() < fastest->median())) fastest = r;
  json event = {{"unit", index}, {"bucket", at}, {"times", json::array()}};
  for (const auto& r : runners) event["times"].push_back({r->id, r->median(), r->noise(), r->us.size()});
  const auto own = std::find_if(all.begin(), all.end(), [&](const Runner* r) { return r->id == untuned; });
  if (own != all.end() && fastest != *own) {
    std::vector<Runner*> two = {fastest, *own};
    for (Runner* r : two) r->us.clear();
    const auto again = Clock::now();
    rounds(two, kRoundsAgain, pipe,
           [&](const Runner& r) { return r.us.size() < kLeastAgain || us_since(again) < share / 2; });
    event["other"] = fastest->id;
    event["again"] = {two[0]->figures(), two[1]->figures()};
  }
  event["from_cache"] = from_cache;
  pipe.send(event);
  return true;
}

template <class Problem>
bool work_on(const Problem& problem, const json& job, const Candidates& candidates, const Device& device,
             TrialContext context, Budget& budget, ChildPipe& pipe) {
  using Op = OpOf<Problem>;
  std::vector<Entry<Op>> entries;
  for (const json& e : job.at("entries")) {
    Entry<Op> entry;
    entry.id = e.at("id").get<int>();
    const Choice<Op> named =
        candidate_named<Op>(candidates, problem, device, e.at("backend").get_ref<const std::string&>(),
                            e.at("tactic").get_ref<const std::string&>());
    entry.backend = named.backend;
    entry.tactic = named.tactic;
    entries.push_back(std::move(entry));
  }
  if (budget.left_us() <= 0) return false;
  bool from_cache = false;
  context.on_no_room = [&from_cache] { from_cache = true; };
  Trial<Op> trial(problem, context);
  for (const json& bucket : job.at("buckets"))
    if (!measure(trial, entries, bucket, job.at("index").get<int>(), budget, context.gpu, from_cache, pipe))
      return false;
  return true;
}

}  // namespace

int tune_child(const Candidates& candidates) {
  constexpr const char* kName = "tune --child";
  ChildPipe pipe;
  const json head = next_job(kName);
  if (head.is_null()) fail(Code::kInvalidRequest, "tune --child: reads problems from standard input, got none");
  const int gpu_index = head.value("gpu", -1);
  limit_child(gpu_index >= 0);
  Device device = this_cpu();
  std::unique_ptr<gpu::Stream> gpu;
  if (gpu_index >= 0) {
    device = gpu::device(gpu_index);
    gpu::use(gpu_index);
    gpu::share_buffers();
    gpu = std::make_unique<gpu::Stream>();
  }
  ThreadTeam team(std::clamp(head.value("threads", 1), 1, 1024));
  const TrialContext context{.team = &team,
                             .seed = head.value("seed", uint64_t{1}),
                             .alive = [&pipe] { pipe.alive(); },
                             .gpu = gpu.get(),
                             .proves = false,
                             .copies = gpu != nullptr ? &gpu::place : TrialContext::MakePlace{}};
  pipe.send({{"hello", true}});
  Budget budget(head.value("seconds", 1.0), head.value("units", 1));
  for (json job = next_job(kName); !job.is_null(); job = next_job(kName)) {
    const AnyProblem problem = problem_from_json(job.at("problem"));
    const bool done =
        std::visit([&](const auto& p) { return work_on(p, job, candidates, device, context, budget, pipe); }, problem);
    if (done) continue;
    pipe.send({{"out_of_time", true}});
    break;
  }
  pipe.send({{"end", true}});
  return 0;
}

int tune_child() { return tune_child(Candidates::all()); }

}  // namespace mettle
