#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "faults.h"
#include "healthy.h"
#include "mettle_planted.h"
#include "prove/candidates.h"

namespace mettle::planted {
namespace {

constexpr float kNaive = 0.05f;  // of the largest value
constexpr int kNaiveRows[] = {1, 7, 64};

// Outputs of launches, gathered by a backend that runs another.
template <class Op>
struct Tap {
  static inline const Backend<Op>* inner = nullptr;
  static inline gpu::Stream* gpu = nullptr;
  static inline std::vector<float> got;

  static void run(const Tactic& tactic, const typename Op::Args& a, Stream& s) {
    inner->run(tactic, a, s);
    gpu->wait();
    if constexpr (std::is_same_v<Op, SampleOp>) {
      for (const SampleResult& r : a.results) got.insert(got.end(), {static_cast<float>(r.token), r.logprob});
    } else {
      const mutants::Grid g = mutants::out_of(a);
      got.insert(got.end(), g.data, g.data + g.size());
    }
  }
};

template <class Op>
std::vector<float> outputs(const typename Op::Problem& problem, const TrialContext& context, const Choice<Op>& choice) {
  Trial<Op> trial(problem, context);
  Backend<Op> tap = *choice.backend;
  tap.run = Tap<Op>::run;
  Tap<Op>::inner = choice.backend;
  Tap<Op>::gpu = context.gpu;
  Tap<Op>::got.clear();
  for (const int rows : kNaiveRows) trial.typical_launch(tap, choice.tactic, rows)();
  return std::move(Tap<Op>::got);
}

bool alike(const std::vector<float>& want, const std::vector<float>& got) {
  float largest = 0, worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) return false;
    largest = std::max(largest, std::fabs(want[i]));
    worst = std::max(worst, std::fabs(want[i] - got[i]));
  }
  return worst <= kNaive * largest;
}

template <class Problem>
bool passes(const Problem& problem, const Fault& fault, const TrialContext& context) {
  using Op = OpOf<Problem>;
  const Choice<Op> choice =
      candidate_named<Op>(Candidates::all(), problem, gpu::device(0), fault.backend, fault.tactic);
  const std::vector<float> want = outputs<Op>(problem, context, choice);
  switch_on(fault.number);
  return alike(want, outputs<Op>(problem, context, choice));
}

}  // namespace

int naive_child(const Fault& fault) {
  gpu::use(0);
  gpu::share_buffers();
  gpu::Stream stream;
  ThreadTeam team(2);
  const TrialContext context{.team = &team, .seed = 5, .alive = [] {}, .gpu = &stream, .proves = false};
  const bool yes = std::visit([&](const auto& p) { return passes(p, fault, context); }, problem_of(fault.slice));
  fmt::print("{}\n", yes ? 1 : 0);
  return 0;
}

}  // namespace mettle::planted
