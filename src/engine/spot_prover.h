// While the engine has nothing to do, what serves is proved again: one (problem, backend, tactic) after the other, with
// new random cases, in a child process like the first proof.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "ops/problem.h"

namespace mettle {

class SpotProver {
 public:
  // Called on the prover's own thread.
  struct Hooks {
    std::function<double()> idle_seconds;                   // how long nothing has run; 0 while something does
    std::function<std::vector<ServedProblem>()> served;     // now
    std::function<void(const ProofEntry& entry)> on_proof;  // a failure has been seen twice
  };
  // problems: all of the plan.
  SpotProver(std::vector<AnyProblem> problems, ProveOptions options, Hooks hooks);
  ~SpotProver();  // waits for the proof that runs

 private:
  struct Turn {
    const AnyProblem* problem = nullptr;
    Served served;
  };
  void loop();
  bool stopped_within(double seconds);
  Turn next();
  ProofEntry prove_once(const Turn& turn);

  std::vector<AnyProblem> problems_;
  ProveOptions options_;
  Hooks hooks_;
  size_t turn_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace mettle
