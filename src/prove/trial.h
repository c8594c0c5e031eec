// One problem under proof: its cases with their expected values, shared by all tactics. A Trial<Op> is made once per
// problem in the child; prove() runs every case on one tactic and demands, time() runs a typical launch.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/backend.h"
#include "ops/batch_stage.h"
#include "ops/expected.h"
#include "ops/problem.h"
#include "prove/examination.h"
#include "tensor/gpu.h"

namespace mettle {

// Multiply-adds that a tactic's cases of one problem may cost, and that the oracle may spend on one case.
inline constexpr int64_t kCaseWork = 100'000'000;
inline constexpr int64_t kOracleWork = 200'000'000;

struct TrialContext {
  ThreadTeam* team = nullptr;
  uint64_t seed = 1;
  std::function<void()> alive;  // called between launches: the parent's deadline of silence starts anew
  int64_t work = kCaseWork;
  gpu::Stream* gpu = nullptr;  // a GPU's backends are tried; Buffers are shared with it
  bool proves = true;          // false: only launches to be timed are asked for, packing needs no check
  // For timed_weights.h: a place for copies of weights, empty where none are wanted; called when it has no room for
  // them.
  using MakePlace = std::function<std::unique_ptr<Place>()>;
  MakePlace copies = {};
  std::function<void()> on_no_room = {};

  DeviceKind kind() const { return gpu == nullptr ? DeviceKind::kCpu : DeviceKind::kCuda; }
  Layout layout() const { return layout_of(kind()); }
  Stream stream() const { return {team, gpu == nullptr ? nullptr : gpu->handle()}; }
  // Sequences of a timed launch of attention and gdn: what serving runs. A decode step holds one row a sequence; a CPU
  // serves fewer of them side by side, and what is beyond are chunks of prompts: of several there, of one on a GPU.
  int timed_sequences(int rows) const {
    if (kind() == DeviceKind::kCuda) return rows <= 256 ? rows : 1;
    return rows <= 32 ? rows : 16;
  }
  // Runs it and waits until its results can be read.
  template <class Op>
  void run(const Backend<Op>& backend, const Tactic& tactic, const typename Op::Args& args) const {
    Stream on = stream();
    backend.run(tactic, args, on);
    if (gpu != nullptr) gpu->wait();
    alive();
  }
};

template <class Op>
class Trial {
 public:
  Trial(const typename Op::Problem& problem, const TrialContext& context);
  ~Trial();
  // Throws ProofFailure at the first demand that is not met.
  void prove(const Backend<Op>& backend, const Tactic& tactic, Examination& examination);
  // A launch of `rows` typical rows, ready to run any number of times.
  std::function<void()> typical_launch(const Backend<Op>& backend, const Tactic& tactic, int rows);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---- for the trials themselves -------------------------------------------------------------------------------------

// Workspace of a launch, poisoned and guarded.
class GuardedWorkspace {
 public:
  GuardedWorkspace(size_t bytes);
  Workspace arm();
  Verdict check() const { return body_.check_guards(); }

 private:
  Guarded body_;
};

// The batch with what a GPU reads of it, if the trial is on one.
class TrialBatch {
 public:
  TrialBatch(const TrialContext& context, const Batch& batch);
  const Batch& batch() const { return batch_; }

 private:
  std::unique_ptr<Place> place_;
  std::unique_ptr<BatchStage> stage_;
  Batch batch_;
};

// The backend of that kind of device that every other is held against where the oracle was not asked.
template <class Op>
const Backend<Op>& reference_of(DeviceKind kind = DeviceKind::kCpu) {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->name == "reference" && b->kind == kind && b->run != nullptr) return *b;
  fail(Code::kInternal, std::string(Op::kName) + ": no backend named reference");
}

inline std::span<const float> floats(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

template <class Op>
size_t workspace_bytes(const Backend<Op>& backend, const Tactic& tactic, const typename Op::Problem& problem, int rows,
                       int members) {
  return backend.workspace != nullptr ? backend.workspace(tactic, problem, rows, members) : 0;
}

// Computes the expected values of these rows, split over the team.
Expected expect_rows(ThreadTeam& team, std::span<const int> rows,
                     const std::function<Expected(std::span<const int>)>& of);

// Rows that the oracle was not asked for, judged against the proved reference: the same error terms, each column at the
// worst that the oracle's rows showed, doubled because two backends err. Coarser than the oracle, sharp enough for a
// skipped row or tile. `judged` are the oracle's rows, `reference` [all, cols].
struct RestOfRows {
  std::vector<int> rows;
  Expected expected;
};
RestOfRows rest_of_rows(int all, std::span<const int> judged_rows, const Expected& judged,
                        std::span<const float> reference);

// Rows of [all, cols] picked and put together.
std::vector<float> pick_rows(std::span<const float> values, int64_t cols, std::span<const int> rows);

// Every packed element equals the raw weight bit for bit; else WRONG_OUTPUT that names it.
Verdict prove_packing(const std::string& name, const PackedMatrix& packed, const RawSegments& raw);

std::vector<int> iota_rows(int rows);

// A very wide weight is proved and timed on its first rows: the problem of that part.
LinearProblem proved_part(LinearProblem problem);

}  // namespace mettle
