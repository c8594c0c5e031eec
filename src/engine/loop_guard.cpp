// What the engine does about values that are not finite: find the op, end the requests, replace the backend.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "engine/loop.h"
#include "models/block.h"
#include "tensor/finite.h"

namespace mettle {
namespace {

// After values whose origin was not found every step is looked at, for so many.
constexpr uint64_t kAlertSteps = 4096;

}  // namespace

bool EngineLoop::watches(uint64_t step) const {
  if (parts_.guard == Guard::kOff) return false;
  return step < alert_until_ || step % watch_every_ == 0;
}

void EngineLoop::find_hits(std::span<const ScheduledRows> rows, std::span<const SampleResult> results) {
  hits_.clear();
  int row = 0;
  size_t next = 0;  // of chosen_
  for (const ScheduledRows& r : rows) {
    Hit hit{.sequence = r.sequence, .rows = r.rows, .mark = kUnmarked};
    for (int i = 0; watched_ && i < r.rows; ++i) hit.mark = std::min(hit.mark, parts_.runner->mark(row + i));
    row += r.rows;
    bool bad = hit.mark != kUnmarked;
    if (next < chosen_.size() && chosen_[next] == r.sequence) {
      const SampleResult& result = results[next];
      if (!bad && (result.token < 0 || !std::isfinite(result.logprob))) {
        bad = true;
        // A step ahead has written others there; which op it was is then found by computing again.
        hit.finite_logits = ahead_.requests.empty() && logits_finite(static_cast<size_t>(chosen_rows_[next]));
      }
      ++next;
    }
    if (bad) hits_.push_back(hit);
  }
}

bool EngineLoop::is_hit(const Sequence& sequence) const {
  return std::any_of(hits_.begin(), hits_.end(), [&](const Hit& hit) { return hit.sequence == &sequence; });
}

bool EngineLoop::logits_finite(size_t row) {
  const auto vocab = static_cast<size_t>(parts_.info.vocab_size);
  std::vector<float> logits(vocab);
  parts_.runner->place().copy_out(logits.data(), parts_.runner->logits().as<float>() + row * vocab,
                                  vocab * sizeof(float));
  return std::all_of(logits.begin(), logits.end(), [](float v) { return std::isfinite(v); });
}

OpPlace EngineLoop::place_of(const Hit& hit, int rows) {
  const int logit_rows = static_cast<int>(logit_rows_.size());
  if (hit.mark != kUnmarked) return parts_.runner->ranks().front()->place_of(hit.mark, rows, logit_rows);
  if (!hit.finite_logits) return {};
  const Choice<SampleOp>& c = parts_.sample_choices.at(logit_rows);
  return {SampleOp::kName, "of its token", std::string(c.backend->name), c.tactic.name};
}

OpPlace EngineLoop::compute_again(const Sequence& s, int last_rows) {
  const int before = s.computed - last_rows;
  for (int at = 0; at < s.computed;) {
    const int end = at < before ? std::min(at + parts_.scheduler.step_tokens, before) : s.computed, rows = end - at;
    const BatchSequence one{.first_row = 0,
                            .q_len = rows,
                            .ctx_len = at,
                            .block_table = s.blocks.data(),
                            .state_in = at > 0 ? s.slot : -1,
                            .state_out = s.slot};
    const int32_t last = rows - 1;
    parts_.runner->run_watched(
        {.batch = {.rows = rows, .block_size = parts_.scheduler.block_size, .sequences = {&one, 1}},
         .ids = s.tokens.data() + at,
         .logit_rows = {&last, 1},
         .logits = view_of(parts_.runner->logits().data, DType::kF32, {1, parts_.info.vocab_size})});
    parts_.runner->wait();
    int32_t mark = kUnmarked;
    for (int row = 0; row < rows; ++row) mark = std::min(mark, parts_.runner->mark(row));
    if (mark != kUnmarked) return parts_.runner->ranks().front()->place_of(mark, rows, 1);
    at = end;
  }
  return {};
}

void EngineLoop::end_hits(int rows) {
  if (hits_.empty()) return;
  parts_.runner->wait();
  const bool guarded = parts_.guard != Guard::kOff;
  counted_.nonfinite_rows += hits_.size();
  std::vector<OpPlace> places;
  for (const Hit& hit : hits_) places.push_back(place_of(hit, rows));
  // Who was not looked at in this step, and those of one step have one cause.
  bool searched = false;
  OpPlace found;
  for (size_t i = 0; i < hits_.size() && guarded; ++i) {
    if (!places[i].op.empty()) continue;
    if (!searched) found = compute_again(*hits_[i].sequence, hits_[i].rows);
    searched = true;
    places[i] = found;
  }
  if (searched && found.op.empty()) alert_until_ = counted_.steps + kAlertSteps;

  std::vector<std::string> errors;
  for (size_t i = 0; i < hits_.size(); ++i) {
    std::string where = places[i].op.empty() ? "the logits" : places[i].text();
    if (places[i].op.empty() && searched) where += "; computed again they are, so it is not known which op it was";
    errors.push_back(fmt::format("values are not finite after {} tokens: {}", hits_[i].sequence->size(), where));
    log::error("guard: request {}: {}", hits_[i].sequence->id, errors.back());
  }
  std::string fatal;
  for (size_t i = 0; i < hits_.size() && guarded; ++i) {
    const OpPlace& p = places[i];
    const auto same = [&](const OpPlace& o) { return o.op == p.op && o.backend == p.backend; };
    const bool first = std::none_of(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(i), same);
    if (p.op.empty() || !first || !book_.count(p.op, p.backend) || book_.quarantined(p.op, p.backend)) continue;
    try {
      quarantine(p.op, p.backend,
                 fmt::format("{} steps with values that are not finite, the last in {}", kGuardLimit, p.text()),
                 &hits_[i]);
    } catch (const Error& e) {
      fatal = e.message;
    }
  }
  publish_serving();
  for (size_t i = 0; i < hits_.size(); ++i)
    finish(hits_[i].sequence->id, {.finish = Finish::kError, .error = errors[i]});
  hits_.clear();
  if (!fatal.empty()) fail(Code::kDevice, fatal);
}

void EngineLoop::quarantine(std::string_view op, std::string_view backend, const std::string& why, const Hit* victim) {
  if (book_.quarantined(op, backend)) return;
  const EngineChoices::Everything before = parts_.choices->everything();
  const auto buckets = parts_.choices->remove(op, backend);
  if (!buckets) {
    book_.quarantine(op, backend, why);
    publish_serving();
    fail(Code::kDevice, fmt::format("guard: {} has no proved backend left: {} is out: {}", op, backend, why));
  }
  hand_out();
  if (victim != nullptr) {
    const OpPlace again = compute_again(*victim->sequence, victim->rows);
    if (again.op == op) {
      parts_.choices->restore(before);
      hand_out();
      book_.forget(op, backend);
      log::error(
          "guard: {}/{} goes on: {}, but {} gives such values for the same tokens; look for the cause in the "
          "model or the request",
          op, backend, why, again.backend);
      return;
    }
  }
  book_.quarantine(op, backend, why);
  if (op != SampleOp::kName) parts_.runner->drop_graphs(*buckets);
  publish_serving();
  log::error("guard: {}/{} is quarantined: {}. The next proved backend serves from here on, without a restart:\n{}", op,
             backend, why, parts_.choices->text());
}

void EngineLoop::hand_out() {
  for (const auto& rank : parts_.runner->ranks()) rank->choose(*parts_.choices);
  parts_.sample_choices = parts_.choices->choose(parts_.sample_problem);
}

void EngineLoop::publish_serving() {
  ServingPlan now{.guard = parts_.guard,
                  .guard_limit = kGuardLimit,
                  .problems = parts_.choices->served(),
                  .events = book_.events(),
                  .quarantines = book_.quarantines()};
  const std::lock_guard lock(mutex_);
  serving_ = std::move(now);
}

ServingPlan EngineLoop::serving() const {
  const std::lock_guard lock(mutex_);
  return serving_;
}

void EngineLoop::start_spot_prover() {
  SpotProver::Hooks hooks;
  hooks.idle_seconds = [this] {
    const std::lock_guard lock(mutex_);
    if (open_ > 0 || !stats_.healthy) return 0.0;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - idle_since_).count();
  };
  hooks.served = [this] { return serving().problems; };
  hooks.on_proof = [this](const ProofEntry& entry) {
    const std::lock_guard lock(mutex_);
    ++(entry.verdict.ok() ? stats_.spot_proofs : stats_.spot_failures);
    if (entry.verdict.ok()) return;
    accused_.push_back(entry);
    work_.notify_one();
  };
  spot_prover_ = std::make_unique<SpotProver>(std::move(parts_.problems), parts_.prove_options, std::move(hooks));
}

}  // namespace mettle
