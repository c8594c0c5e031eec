#include "engine/spot_prover.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"

namespace mettle {
namespace {

constexpr double kIdleSeconds = 1;  // before a proof begins
constexpr double kLookSeconds = 0.1;
constexpr double kRest = 9;  // times as long as the proof took, and at least kIdleSeconds: a tenth of one core

// A wrong result. What the moment or the device brought about (no memory, no time) says nothing of a backend.
bool convicts(VerdictCode code) {
  return !info_of(code).refusal && code != VerdictCode::kOk && code != VerdictCode::kOutOfMemory &&
         code != VerdictCode::kHang && code != VerdictCode::kCompileFailed;
}

}  // namespace

SpotProver::SpotProver(std::vector<AnyProblem> problems, ProveOptions options, Hooks hooks)
    : problems_(std::move(problems)), options_(std::move(options)), hooks_(std::move(hooks)) {
  options_.cache_folder = "none";
  options_.reprove = true;
  options_.time = false;
  options_.threads = 1;  // a request may come in the middle of it
  options_.on_progress = nullptr;
  thread_ = std::thread([this] { loop(); });
}

SpotProver::~SpotProver() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

bool SpotProver::stopped_within(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return stop_; });
}

SpotProver::Turn SpotProver::next() {
  std::vector<Turn> turns;
  for (const ServedProblem& p : hooks_.served()) {
    const auto problem = std::find_if(problems_.begin(), problems_.end(),
                                      [&](const AnyProblem& any) { return text_of(any) == p.problem; });
    if (problem == problems_.end()) continue;
    std::vector<Served> seen;
    for (const Served& s : p.by_bucket) {
      if (std::find(seen.begin(), seen.end(), s) != seen.end()) continue;
      seen.push_back(s);
      turns.push_back({&*problem, s});
    }
  }
  return turns.empty() ? Turn{} : turns[turn_++ % turns.size()];
}

ProofEntry SpotProver::prove_once(const Turn& turn) {
  options_.only_op = op_name_of(*turn.problem);
  options_.only_backend = turn.served.backend;
  options_.only_tactic = turn.served.tactic;
  options_.seed = turn_ + 1;
  const ProofReport report = prove({turn.problem, 1}, options_);
  return report.entries.empty() ? ProofEntry{} : report.entries.front();
}

void SpotProver::loop() {
  double wait = kLookSeconds;
  while (!stopped_within(wait)) {
    wait = kLookSeconds;
    if (hooks_.idle_seconds() < kIdleSeconds) continue;
    const Turn turn = next();
    if (turn.problem == nullptr) continue;
    const auto begin = std::chrono::steady_clock::now();
    try {
      ProofEntry entry = prove_once(turn);
      if (convicts(entry.verdict.code)) entry = prove_once(turn);
      if (entry.verdict.ok() || convicts(entry.verdict.code))
        hooks_.on_proof(entry);
      else
        log::warn("guard: the spot proof of {} {} of {} came to no end: {}, {}", turn.served.backend,
                  turn.served.tactic, text_of(*turn.problem), name_of(entry.verdict.code), entry.verdict.sentence);
    } catch (const std::exception& e) {
      log::warn("guard: no spot proof now: {}", e.what());
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    wait = std::max(kIdleSeconds, kRest * took.count());
  }
}

}  // namespace mettle
