// What mettle inspect found out about a model and, if one was asked about, a device.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/anomalies.h"
#include "cli/bandwidth.h"
#include "models/model.h"

namespace mettle {

struct InspectionRequest {
  std::string model, device = "auto";
  ModelOptions formats;  // of them dense and cache
  int tp_size = 1;
  int context_length = 0;  // 0: the model's
  int concurrency = 64;
};

// Weights of one kind in one format.
struct Content {
  std::string kind, format;
  int64_t modules = 0, weights = 0, bytes = 0;
  std::string served;                  // the format it is served in, when that is another
  bool used = true;                    // by this program
  double read_one = 0, read_many = 0;  // bytes read by a step of one sequence, and of all
};

// Bytes; on GPUs of the rank that needs most, on a CPU of all ranks.
struct Fit {
  int64_t weights = 0, scratch = 0;
  int64_t state_per_sequence = 0, kv_per_token = 0;
  int64_t memory = 0;     // what there is
  std::string memory_is;  // "as sold", "free now"
  int context = 0, sequences = 0;
  int64_t kv() const { return int64_t{context} * sequences * kv_per_token; }
  int64_t state() const { return sequences * state_per_sequence; }
  int64_t free_for_caches() const { return memory - weights - scratch; }
  int64_t total() const { return weights + scratch + state() + kv(); }
  bool fits() const { return total() <= memory; }
  // With the context asked for, and all of the rest for caches.
  int64_t most_sequences() const;
  // Of each of the sequences asked for.
  int64_t most_context() const;
};

struct Bound {  // of tokens per second by memory bandwidth alone
  int64_t context = 0;
  int sequences = 1;
  double weights = 0, state = 0, kv = 0;  // bytes of one step of all ranks
  double bytes() const { return weights + state + kv; }
  double tokens_per_second = 0;  // of all sequences; 0: not known
};

// What another engine holds at most while it shuffles weights of experts into its kernels' layout.
struct ShufflePeak {
  std::string way, formula, source;
  int64_t bytes = 0;  // of one GPU
  bool fits = true;
};

struct Inspection {
  std::string model, architecture, formats;  // formats: the checkpoint, config.json
  std::string refusal;                       // why this program would not serve it; empty: nothing found
  int layers = 0, context = 0, mtp_layers = 0, experts = 0, top_k = 0;
  std::vector<Content> contents;
  int64_t files_bytes = 0;
  std::vector<std::string> missing, unused;
  std::vector<std::pair<std::string, int64_t>> kept_aside;  // why, bytes
  Anomalies anomalies;

  Device device;
  bool named = false;  // taken from the table, not found here
  int tp_size = 1;
  Bandwidth bandwidth;        // of one device
  std::optional<Fit> fit;     // none: the model cannot be planned
  std::vector<Bound> bounds;  // {1, many} sequences at each context
  std::vector<ShufflePeak> shuffle;
};

// Reads headers and small tensors only. Fails with kBadModel, kUnsupported (no weights and an architecture that is not
// known) or kInvalidRequest.
Inspection inspect(const InspectionRequest& request);

// Expected number of different experts that n tokens are sent to: E (1 - (1 - K/E)^n).
double distinct_experts(int experts, int top_k, int tokens);

std::string inspection_text(const Inspection& inspection);
std::string inspection_json(const Inspection& inspection);

}  // namespace mettle
