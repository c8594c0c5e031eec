// The engine proper: takes requests from any thread, runs steps on its own, tells each request how it goes.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine/choices.h"
#include "engine/guard.h"
#include "engine/probe.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/spot_prover.h"
#include "ops/sample_stage.h"

namespace mettle {

// Everything that start() made.
struct EngineParts {
  EngineInfo info;
  SchedulerOptions scheduler;
  std::unique_ptr<Runner> runner;
  SampleProblem sample_problem;
  Choices<SampleOp> sample_choices;
  Probe probe;
  Guard guard = Guard::kFinite;
  std::unique_ptr<EngineChoices> choices;
  std::function<void()> on_stopped;  // of the options
  std::vector<AnyProblem> problems;  // for the spot prover, as the options
  ProveOptions prove_options;
};

class EngineLoop : public Engine {
 public:
  explicit EngineLoop(EngineParts parts);
  ~EngineLoop() override;  // every request that is left ends with kCancelled

  const EngineInfo& info() const override { return parts_.info; }
  uint64_t submit(std::vector<int32_t> prompt, const SamplingParams& params, OnToken on_token) override;
  void cancel(uint64_t id) override;
  EngineStats stats() const override;
  ServingPlan serving() const override;
  void drain(double seconds) override;

 private:
  void loop();
  bool take_requests();  // waits for work; false: stop
  void step();
  void run_model(std::span<const ScheduledRows> rows);
  void run_probed(Step step);  // the experts of every layer are told
  void probe(const TensorView& logits);
  void sample(std::span<const ScheduledRows> rows);
  // Puts the choice of tokens of rows of logits behind what is enqueued, with its point.
  void enqueue_sampling(int turn, size_t rows);
  std::span<const SampleResult> results_of_chosen(int turn);  // as chosen_

  // Steps ahead (loop_ahead.cpp): while the host hears of a step's tokens the next one runs, with ids that the device
  // takes from the results of the first. Only when nothing that the host does between them could change it.
  void run_ahead();
  bool may_run_ahead();
  // Rows of the step that ran ahead, of requests that have not ended since; none when no step did.
  std::span<const ScheduledRows> landed();
  // Rows of logits that are sampled: on a deterministic GPU always as many, those beyond the step's are not looked at.
  size_t sampled_rows() const;
  bool on_gpu() const { return parts_.info.device.kind == DeviceKind::kCuda; }
  void publish(Sequence& sequence, const SampleResult& result);
  void finish(uint64_t id, const TokenEvent& event);
  void tell(const Sequence& sequence, const TokenEvent& event);
  void end_of_one();
  void finish_all(Finish why, const std::string& error);
  void update_gauges();

  // The guard (loop_guard.cpp).
  struct Hit {  // a sequence of this step with a value that is not finite
    Sequence* sequence = nullptr;
    int rows = 0;                // of it in the step
    int32_t mark = 0;            // where first; kUnmarked: only its token says so
    bool finite_logits = false;  // of those without a mark: it is the sampling
  };
  bool watches(uint64_t step) const;
  void find_hits(std::span<const ScheduledRows> rows, std::span<const SampleResult> results);
  bool is_hit(const Sequence& sequence) const;
  bool logits_finite(size_t row);
  // Ends the sequences that were hit, each with an error that names the op, and counts against the op's backend.
  void end_hits(int rows);
  OpPlace place_of(const Hit& hit, int rows);
  OpPlace compute_again(const Sequence& sequence, int last_rows);  // no place: everything was finite this time
  // Puts the next proved backend in its place. Fails with kDevice when there is none. `victim`: a sequence to try it
  // on; when that has the same values again, the backend is acquitted.
  void quarantine(std::string_view op, std::string_view backend, const std::string& why, const Hit* victim);
  void hand_out();
  void publish_serving();
  void start_spot_prover();

  EngineParts parts_;
  Scheduler scheduler_;

  // Of the engine's thread; sized once.
  std::vector<int32_t> ids_, logit_rows_;
  std::vector<BatchSequence> batch_;
  std::vector<Sequence*> chosen_;   // sequences whose next token is chosen in this step, as logit_rows_
  std::vector<uint64_t> step_ids_;  // requests of this step: its sequences may be gone when it fails
  std::vector<ProbedRow> probed_;
  TokenEvent told_;               // the event of a token; its alternatives keep their room
  std::vector<int> chosen_rows_;  // as chosen_: its row of the step's results
  std::vector<SampleRow> sample_rows_;
  std::unique_ptr<SampleStage> sample_stages_[2];
  int turn_ = 0;  // which of them, and which point, the step has that is waited for
  std::vector<SampleResult> own_results_;
  struct Ahead {  // the step that runs ahead; no requests: none does
    std::vector<uint64_t> requests;
    std::vector<int32_t> ids, logit_rows;
    std::vector<BatchSequence> batch;
  } ahead_;
  std::vector<ScheduledRows> landed_;
  bool ran_ahead_ = false;  // this step
  Workspace sample_ws_;
  Buffer probed_logits_;  // a GPU's, for the probe
  EngineStats counted_;   // published under the lock
  GuardBook book_;
  std::vector<Hit> hits_;
  bool watched_ = false;  // this step
  uint64_t watch_every_ = 1, alert_until_ = 0;

  // Shared with callers.
  mutable std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::vector<std::unique_ptr<Sequence>> arrived_;
  std::vector<uint64_t> cancelled_;
  EngineStats stats_;
  ServingPlan serving_;
  std::vector<ProofEntry> accused_;  // by the spot prover
  std::chrono::steady_clock::time_point idle_since_ = std::chrono::steady_clock::now();
  uint64_t next_id_ = 1;
  uint64_t next_seed_;
  int64_t open_ = 0;  // accepted, not ended
  bool draining_ = false, cancel_all_ = false, stop_ = false;

  std::vector<std::unique_ptr<Sequence>> taken_;  // of the engine's thread: arrived_ and cancelled_ as taken
  std::vector<uint64_t> taken_cancels_;
  std::thread thread_;
  std::unique_ptr<SpotProver> spot_prover_;
};

}  // namespace mettle
