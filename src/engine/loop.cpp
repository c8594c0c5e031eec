#include "engine/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "base/error.h"
#include "base/log.h"
#include "engine/plan.h"
#include "engine/sampler.h"
#include "models/block.h"
#include "tensor/gpu.h"

namespace mettle {
namespace {

// On a CPU every step is looked at: 0.3 % of a decode step (docs/proofs.md). On a GPU that takes a launch for each
// op and a step without its graph, up to twice as long.
constexpr uint64_t kWatchEveryOnGpu = 512;

}  // namespace

EngineLoop::EngineLoop(EngineParts parts) : parts_(std::move(parts)), scheduler_(parts_.scheduler) {
  const auto rows = static_cast<size_t>(parts_.scheduler.step_tokens);
  const auto sequences = static_cast<size_t>(parts_.scheduler.max_running);
  for (auto* list : {&ids_, &ahead_.ids}) list->reserve(rows);  // landed() swaps them
  for (auto* list : {&logit_rows_, &ahead_.logit_rows}) list->reserve(sequences);
  step_ids_.reserve(sequences);
  batch_.reserve(sequences);
  chosen_.reserve(sequences);
  probed_.reserve(sequences);
  told_.top.reserve(std::size(SampleResult{}.top_ids));
  ahead_.requests.reserve(sequences);
  ahead_.batch.reserve(sequences);
  landed_.reserve(sequences);
  chosen_rows_.reserve(sequences);
  own_results_.reserve(sequences);
  sample_rows_.reserve(sequences);
  Place& place = parts_.runner->place();
  for (auto& stage : sample_stages_) stage = std::make_unique<SampleStage>(static_cast<int>(sequences), place);
  sample_ws_.bytes = parts_.sample_choices.workspace(parts_.sample_problem, static_cast<int>(sequences),
                                                     parts_.runner->team().members());
  sample_ws_.data = static_cast<uint8_t*>(place.take(sample_ws_.bytes));
  std::random_device device;
  next_seed_ = uint64_t{device()} << 32 | device();
  hits_.reserve(sequences);
  watch_every_ = parts_.probe.watch_every > 0 ? parts_.probe.watch_every : on_gpu() ? kWatchEveryOnGpu : 1;
  publish_serving();
  update_gauges();
  thread_ = std::thread([this] { loop(); });
  if (parts_.guard == Guard::kSpot) start_spot_prover();
}

EngineLoop::~EngineLoop() {
  spot_prover_ = nullptr;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    work_.notify_all();
  }
  thread_.join();
}

uint64_t EngineLoop::submit(std::vector<int32_t> prompt, const SamplingParams& params, OnToken on_token) {
  const EngineInfo& info = parts_.info;
  CHECK(on_token != nullptr, "submit without on_token");
  if (prompt.empty()) fail(Code::kInvalidRequest, "prompt: must have at least one token, got none", "prompt");
  if (std::ssize(prompt) + 1 > info.context_length)
    fail(Code::kInvalidRequest,
         fmt::format("prompt: must leave room for one token in the context of {}, got {} tokens", info.context_length,
                     prompt.size()),
         "prompt");
  for (size_t i = 0; i < prompt.size(); ++i)
    if (prompt[i] < 0 || prompt[i] >= info.vocab_size)
      fail(Code::kInvalidRequest,
           fmt::format("prompt: token ids must be in 0..{}, got {} at {}", info.vocab_size - 1, prompt[i], i),
           "prompt");
  check_sampling(params, info.vocab_size);

  auto sequence = std::make_unique<Sequence>();
  Sequence& s = *sequence;
  s.prompt_size = static_cast<int>(prompt.size());
  s.most_new = std::min(params.max_tokens, info.context_length - s.prompt_size);
  s.tokens = std::move(prompt);
  s.params = params;
  s.on_token = std::move(on_token);
  s.tokens.reserve(static_cast<size_t>(s.prompt_size + s.most_new));
  s.blocks.reserve(static_cast<size_t>((s.prompt_size + s.most_new) / kBlockSize + 1));
  prepare_sampling(s, info.eos_ids);

  const std::lock_guard lock(mutex_);
  if (!stats_.healthy) fail(Code::kDevice, "engine: stopped after an error: " + stats_.unhealthy_why);
  if (draining_ || stop_) fail(Code::kBusy, "engine: is shutting down, takes no more requests");
  const int64_t waiting = stats_.waiting + std::ssize(arrived_);
  if (waiting >= parts_.scheduler.max_waiting)
    fail(Code::kBusy, fmt::format("engine: {} requests wait, at most {} may", waiting, parts_.scheduler.max_waiting));
  s.id = next_id_++;
  s.seed = params.seed.value_or(next_seed_++);
  ++stats_.requests_accepted;
  ++open_;
  const uint64_t id = s.id;
  arrived_.push_back(std::move(sequence));
  work_.notify_one();
  return id;
}

void EngineLoop::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (id == 0 || id >= next_id_ || open_ == 0) return;
  cancelled_.push_back(id);
  work_.notify_one();
}

EngineStats EngineLoop::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.waiting += std::ssize(arrived_);
  return stats;
}

void EngineLoop::drain(double seconds) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto done = [&] { return open_ == 0; };
  if (idle_.wait_for(lock, std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e9)), done)) return;
  cancel_all_ = true;
  work_.notify_one();
  idle_.wait(lock, done);
}

void EngineLoop::loop() {
  try {
    if (on_gpu()) gpu::use(parts_.info.device.index);
    while (take_requests()) step();
    parts_.runner->wait();
    finish_all(Finish::kCancelled, {});
  } catch (const std::exception& e) {
    // Not an error of one step (step() ends those), so nothing here can be trusted to go on.
    log::error("engine: stopped: {}", e.what());
    {
      const std::lock_guard lock(mutex_);
      stats_.healthy = false;
      stats_.unhealthy_why = e.what();
    }
    finish_all(Finish::kError, fmt::format("the engine stopped: {}", e.what()));
    if (parts_.on_stopped) parts_.on_stopped();
  }
}

bool EngineLoop::take_requests() {
  bool all = false;
  std::vector<ProofEntry> accused;
  {
    std::unique_lock lock(mutex_);
    work_.wait(lock, [&] {
      return stop_ || cancel_all_ || !arrived_.empty() || !cancelled_.empty() || !accused_.empty() ||
             !scheduler_.empty();
    });
    if (stop_) return false;
    accused.swap(accused_);
    std::swap(taken_, arrived_);
    std::swap(taken_cancels_, cancelled_);
    all = std::exchange(cancel_all_, false);
    stats_.waiting += std::ssize(taken_);
  }
  for (auto& sequence : taken_) scheduler_.add(std::move(sequence));
  taken_.clear();
  for (const uint64_t id : taken_cancels_) finish(id, {.finish = Finish::kCancelled});
  taken_cancels_.clear();
  if (all) finish_all(Finish::kCancelled, {});
  if (!accused.empty()) parts_.runner->wait();  // graphs go with a backend
  for (const ProofEntry& e : accused)
    quarantine(e.op, e.backend,
               fmt::format("its spot proof failed: {}: {}, {}", e.problem, name_of(e.verdict.code), e.verdict.sentence),
               nullptr);
  return true;
}

void EngineLoop::step() {
  const auto start = std::chrono::steady_clock::now();
  std::span<const ScheduledRows> rows = landed();
  ran_ahead_ = !rows.empty();
  if (!ran_ahead_) rows = scheduler_.schedule();
  if (rows.empty()) {
    update_gauges();
    return;
  }
  ++counted_.steps;
  update_gauges();  // before any request hears of this step: who was admitted waits no more
  step_ids_.clear();
  for (const ScheduledRows& r : rows) step_ids_.push_back(r.sequence->id);
  try {
    if (!ran_ahead_) run_model(rows);
    sample(rows);
  } catch (const std::exception& e) {
    // A failed device or CUDA call: nothing can be trusted to go on. loop() ends every request and says so.
    const auto* error = dynamic_cast<const Error*>(&e);
    if (on_gpu() || (error != nullptr && error->code == Code::kDevice)) throw;
    log::error("engine: a step of {} sequences failed: {}", rows.size(), e.what());
    ahead_.requests.clear();
    TokenEvent event{.finish = Finish::kError, .error = fmt::format("the step failed: {}", e.what())};
    for (const uint64_t id : step_ids_) finish(id, event);
  }
  counted_.busy_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  update_gauges();
}

void EngineLoop::run_model(std::span<const ScheduledRows> rows) {
  ids_.clear();
  batch_.clear();
  logit_rows_.clear();
  chosen_.clear();
  chosen_rows_.clear();
  probed_.clear();
  for (const ScheduledRows& r : rows) {
    const Sequence& s = *r.sequence;
    const int first = static_cast<int>(ids_.size()), last = first + r.rows - 1;
    ids_.insert(ids_.end(), s.tokens.begin() + s.computed, s.tokens.begin() + s.computed + r.rows);
    batch_.push_back({.first_row = first,
                      .q_len = r.rows,
                      .ctx_len = s.computed,
                      .block_table = s.blocks.data(),
                      .state_in = s.computed > 0 ? s.slot : -1,
                      .state_out = s.slot});
    if (r.rows < s.left()) continue;
    logit_rows_.push_back(last);
    chosen_rows_.push_back(static_cast<int>(chosen_.size()));
    chosen_.push_back(r.sequence);
    probed_.push_back({s.id, s.size() - 1});
  }
  const int vocab = parts_.info.vocab_size;
  const Step step{
      .batch = {.rows = static_cast<int>(ids_.size()), .block_size = parts_.scheduler.block_size, .sequences = batch_},
      .ids = ids_.data(),
      .logit_rows = logit_rows_,
      .logits = view_of(parts_.runner->logits().data, DType::kF32, {std::ssize(logit_rows_), vocab})};
  watched_ = watches(counted_.steps);
  if (parts_.probe.route_steps != nullptr && *parts_.probe.route_steps) {
    run_probed(step);
  } else if (watched_) {
    ++counted_.watched_steps;
    parts_.runner->run_watched(step);
  } else {
    parts_.runner->run(step);
  }
  if (parts_.probe.on_logits && !chosen_.empty()) probe(step.logits);
}

void EngineLoop::run_probed(Step step) {
  watched_ = false;
  std::vector<int32_t> experts;
  const std::function<void(int, const int32_t*, int)> tell = [&](int layer, const int32_t* from, int top_k) {
    parts_.runner->wait();
    experts.resize(static_cast<size_t>(step.batch.rows * top_k));
    parts_.runner->place().copy_out(experts.data(), from, experts.size() * sizeof(int32_t));
    parts_.probe.on_routes(layer, top_k, experts);
  };
  step.on_routes = &tell;
  parts_.runner->run_eagerly(step);
}

void EngineLoop::probe(const TensorView& logits) {
  Place& place = parts_.runner->place();
  if (place.kind() == DeviceKind::kCpu) return parts_.probe.on_logits(probed_, logits);
  parts_.runner->wait();
  if (probed_logits_.size() < logits.bytes()) probed_logits_ = Buffer(logits.bytes());
  TensorView on_host = logits;
  on_host.data = probed_logits_.data();
  place.copy_out(on_host.data, logits.data, logits.bytes());
  parts_.probe.on_logits(probed_, on_host);
  place.copy_in(logits.data, on_host.data, logits.bytes());
}

size_t EngineLoop::sampled_rows() const {
  const bool all = parts_.scheduler.whole_chunk > 0;
  return all ? static_cast<size_t>(parts_.scheduler.max_running) : chosen_.size();
}

void EngineLoop::sample(std::span<const ScheduledRows> rows) {
  for (const ScheduledRows& r : rows) r.sequence->computed += r.rows;
  if (chosen_.empty()) {
    parts_.runner->wait();
    find_hits(rows, {});
    return end_hits(static_cast<int>(ids_.size()));
  }
  if (!ran_ahead_) {
    sample_rows_.clear();
    for (const Sequence* s : chosen_) sample_rows_.push_back(sample_row(*s));
    enqueue_sampling(turn_, sampled_rows());
  }
  const int turn = std::exchange(turn_, turn_ ^ 1);
  run_ahead();
  parts_.runner->wait_for(turn);
  const std::span<const SampleResult> results = results_of_chosen(turn);
  find_hits(rows, results);
  for (size_t i = 0; i < chosen_.size(); ++i)
    if (!is_hit(*chosen_[i])) publish(*chosen_[i], results[i]);
  end_hits(static_cast<int>(ids_.size()));
}

void EngineLoop::enqueue_sampling(int turn, size_t rows) {
  sample_rows_.resize(rows);
  SampleStage& stage = *sample_stages_[turn];
  const int count = static_cast<int>(rows);
  const SampleArgs args{.problem = parts_.sample_problem,
                        .rows = count,
                        .logits = view_of(parts_.runner->logits().data, DType::kF32, {count, parts_.info.vocab_size}),
                        .params = sample_rows_,
                        .results = stage.results(rows),
                        .ws = sample_ws_,
                        .device = on_gpu() ? &stage.fill(sample_rows_) : nullptr};
  Stream stream = parts_.runner->stream();
  run_op(parts_.sample_choices.at(count), args, stream);
  parts_.runner->mark_point(turn);
}

void EngineLoop::publish(Sequence& s, const SampleResult& result) {
  if (s.generated() == 0) counted_.prompt_tokens += static_cast<uint64_t>(s.prompt_size);
  if (stops(s, result.token)) return finish(s.id, {.finish = Finish::kStop, .stop_token = result.token});
  append_token(s, result.token);
  ++counted_.generated_tokens;
  told_.token = result.token;
  told_.logprob = result.logprob;
  told_.top.clear();
  for (int i = 0; i < s.params.top_logprobs; ++i)
    if (result.top_ids[i] >= 0) told_.top.emplace_back(result.top_ids[i], result.top_logprobs[i]);
  told_.finish = s.generated() < s.most_new ? Finish::kNone : Finish::kLength;
  if (told_.finish == Finish::kNone) return tell(s, told_);
  finish(s.id, told_);
}

void EngineLoop::tell(const Sequence& s, const TokenEvent& event) {
  try {
    s.on_token(event);
  } catch (const std::exception& e) {
    // The listener is gone or broken; its request ends before the next step.
    log::warn("engine: request {}: its listener failed: {}", s.id, e.what());
    if (event.finish == Finish::kNone) cancel(s.id);
  }
}

void EngineLoop::finish(uint64_t id, const TokenEvent& event) {
  const std::unique_ptr<Sequence> s = scheduler_.remove(id);
  if (s == nullptr) return;
  if (event.finish == Finish::kCancelled)
    ++counted_.requests_cancelled;
  else if (event.finish == Finish::kError)
    ++counted_.requests_failed;
  else
    ++counted_.requests_finished;
  update_gauges();  // before the caller hears of it: blocks and slots are back
  tell(*s, event);
  end_of_one();
}

void EngineLoop::end_of_one() {
  const std::lock_guard lock(mutex_);
  if (--open_ > 0) return;
  idle_since_ = std::chrono::steady_clock::now();
  idle_.notify_all();
}

void EngineLoop::finish_all(Finish why, const std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    for (auto& sequence : arrived_) taken_.push_back(std::move(sequence));
    arrived_.clear();
  }
  for (auto& sequence : taken_)
    if (sequence != nullptr) scheduler_.add(std::move(sequence));
  taken_.clear();
  while (!scheduler_.empty()) {
    const std::unique_ptr<Sequence> s = scheduler_.remove_any();
    ++(why == Finish::kCancelled ? counted_.requests_cancelled : counted_.requests_failed);
    update_gauges();
    tell(*s, {.finish = why, .error = error});
    end_of_one();
  }
}

void EngineLoop::update_gauges() {
  const std::lock_guard lock(mutex_);
  counted_.requests_accepted = stats_.requests_accepted;
  counted_.spot_proofs = stats_.spot_proofs;
  counted_.spot_failures = stats_.spot_failures;
  counted_.healthy = stats_.healthy;
  counted_.unhealthy_why = stats_.unhealthy_why;
  counted_.preemptions = scheduler_.preemptions();
  counted_.running = scheduler_.running();
  counted_.waiting = scheduler_.waiting();
  counted_.blocks_used = scheduler_.blocks().used();
  counted_.blocks_total = scheduler_.blocks().total();
  counted_.slots_used = scheduler_.slots().used();
  counted_.slots_total = scheduler_.slots().total();
  stats_ = counted_;
}

}  // namespace mettle
