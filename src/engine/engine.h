// The engine: requests of token ids in, token events out. One step loop on its own thread; callers of any thread.
// It knows no text and no JSON. Every accepted request gets exactly one final event, whatever happens.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/formats.h"
#include "ops/attention.h"
#include "prove/prover.h"

namespace mettle {

// What watches over values while serving. kFinite: steps are looked at, a request with values that are not finite ends
// with an error, a backend that gives them again and again is replaced by the next proved one. kSpot: besides, what
// serves is proved again in idle moments.
enum class Guard : uint8_t { kOff, kFinite, kSpot };
std::string_view name_of(Guard guard);

struct EngineOptions {
  std::string model_path;      // folder (find_model() was applied)
  bool dummy_weights = false;  // --load-format dummy
  uint64_t dummy_seed = 1;
  std::string device = "auto";  // cpu, cuda, cuda:N; auto: cuda when a GPU is there
  int threads = 0;              // 0: usable cores; shared by the ranks
  int tp_size = 1;
  int context_length = 0;    // 0: the model's, limited by memory
  int max_running = 64;      // sequences in one step
  int step_tokens = 0;       // rows of one step: decode rows first, the rest prefill chunks; 0: see step_rows()
  int64_t cache_tokens = 0;  // paged cache capacity in tokens; 0: from cache_bytes
  int64_t cache_bytes = 0;   // for paged blocks and state slots; 0: 1 GiB on a CPU, most of what is free on a GPU
  Activation activation = Activation::kBf16;
  DenseDtype dense = DenseDtype::kAuto;
  CacheFormat kv_cache = CacheFormat::kActivation;
  bool deterministic = false;
  Guard guard = Guard::kFinite;
  int64_t max_waiting = 1024;  // requests; more are refused with kBusy
  int usable_vocab = 0;        // ids below this may be generated (the rest is padding); 0: all
  std::string moe_backend, linear_backend, attention_backend, gdn_backend;  // empty: auto; a name never falls back
  std::string cache_folder;                                                 // of verdicts; see ProveOptions
  bool reprove = false;
  std::vector<std::string> child_argv;                                                       // see ProveOptions
  std::function<void(const std::string& phase, uint64_t done, uint64_t total)> on_progress;  // prove, load
  // On the engine's thread, when an error has ended it for good (a lost device) and every request has heard.
  std::function<void()> on_stopped;
};

struct SamplingParams {
  double temperature = 1, top_p = 1, min_p = 0;
  int top_k = 0;  // 0: all
  double repetition = 1, presence = 0, frequency = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<uint64_t> seed;   // absent: drawn
  int max_tokens = 16;            // >= 1; clipped to what the context leaves
  int min_tokens = 0;             // stop ids are forbidden before that many tokens
  std::vector<int32_t> stop_ids;  // besides the model's end-of-sequence ids
  bool ignore_eos = false;
  int top_logprobs = -1;  // -1: none wanted; 0..20 alternatives
};

enum class Finish : uint8_t { kNone, kStop, kLength, kCancelled, kError };

struct TokenEvent {
  int32_t token = -1;  // -1 in a final event that carries no token
  float logprob = 0;
  std::vector<std::pair<int32_t, float>> top;  // alternatives, best first
  Finish finish = Finish::kNone;               // other than kNone: the last event of the request
  int32_t stop_token = -1;                     // kStop: the id that stopped it (not delivered as a token)
  std::string error;                           // kError: what happened
};

// Called on the engine's thread, in order, never after the final event: hand over, do not work.
using OnToken = std::function<void(const TokenEvent&)>;

struct EngineInfo {
  std::string model_name, architecture;
  int vocab_size = 0, context_length = 0, layers = 0;
  std::vector<int32_t> eos_ids;
  int64_t weight_bytes = 0, cache_bytes = 0, blocks = 0, block_size = 0, state_slots = 0;
  // The memory plan: cache_bytes is kv and state; available is what there was before anything was taken.
  int64_t scratch_bytes = 0, kv_bytes = 0, state_bytes = 0, planned_bytes = 0, available_bytes = 0;
  Activation activation = Activation::kBf16;
  DenseDtype dense = DenseDtype::kAuto;
  int requantised = 0;  // matrices, by `dense`
  DType kv_cache = DType::kBF16;
  int attention_layers = 0, scaled_layers = 0;  // scaled: of an FP8 cache, by scales of the checkpoint
  int tp_size = 1, threads = 1;
  Device device;
  bool dummy_weights = false;
  std::string plan;  // the memory plan and the chosen backends, as text
  ProofReport proofs;
  double load_seconds = 0, prove_seconds = 0;
};

struct EngineStats {  // counters since start, gauges now
  uint64_t requests_accepted = 0, requests_finished = 0, requests_failed = 0, requests_cancelled = 0;
  uint64_t prompt_tokens = 0, generated_tokens = 0, steps = 0, preemptions = 0;
  // Sequences that ended because a value was not finite; steps of which every op's output was looked at; proofs in idle
  // moments.
  uint64_t nonfinite_rows = 0, watched_steps = 0, spot_proofs = 0, spot_failures = 0;
  int64_t running = 0, waiting = 0, blocks_used = 0, blocks_total = 0, slots_used = 0, slots_total = 0;
  double busy_seconds = 0;  // inside steps
  bool healthy = true;      // false after an error that ends the step loop
  std::string unhealthy_why;
};

// What serves now, and what does not any more.
struct Served {
  std::string backend, tactic;
  bool operator==(const Served&) const = default;
};
struct ServedProblem {
  std::string op, problem;
  std::array<Served, kRowBuckets.size()> by_bucket;
  std::array<std::vector<Served>, kRowBuckets.size()> behind;  // what takes over, best first
};
struct GuardEvents {
  std::string op, backend;
  uint64_t events = 0;   // steps in which it was the first to give a value that is not finite
  uint64_t counted = 0;  // of them, those that still count against it
};
struct Quarantine {
  std::string op, backend, why;
};
struct ServingPlan {
  Guard guard = Guard::kFinite;
  uint64_t guard_limit = 0;
  std::vector<ServedProblem> problems;
  std::vector<GuardEvents> events;
  std::vector<Quarantine> quarantines;  // not empty: it serves, with less than it began with
};

class Engine {
 public:
  // Plans, proves, loads. Fails with kBadModel, kUnsupported or kDevice; nothing is left behind then.
  static std::unique_ptr<Engine> start(const EngineOptions& options);
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;
  // Returns the request's id. Fails with kInvalidRequest (empty prompt, id out of range, prompt + 1 > context, values
  // out of range: param names the field as the OpenAI API does) or kBusy.
  virtual uint64_t submit(std::vector<int32_t> prompt, const SamplingParams& params, OnToken on_token) = 0;
  // Takes effect within one step; the final event has kCancelled. Unknown or finished ids are ignored.
  virtual void cancel(uint64_t id) = 0;
  virtual EngineStats stats() const = 0;
  virtual ServingPlan serving() const { return {}; }
  // No new requests (kBusy); returns when the running ones have ended or the deadline passed, then cancels the rest.
  virtual void drain(double seconds) = 0;
};

}  // namespace mettle
