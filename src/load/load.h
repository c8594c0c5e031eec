// Load on an OpenAI-compatible server and what it did to it: closed loop (so many at once) or open loop (arrivals at a
// rate, whatever the server does). Names of figures are those of sglang.bench_serving and vllm bench serve.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "net/http_client.h"

namespace mettle {

// One request: what is sent, and how many tokens are wanted.
struct LoadPrompt {
  std::string text;      // one user message, or the prompt of /v1/completions
  int input_tokens = 0;  // counted here; 0: not known
  int output_tokens = 64;
  int conversation = -1;  // turns of one conversation are sent one after the other, each with the answers before it
};

enum class Arrival { kClosed, kPoisson, kGamma };

struct LoadOptions {
  std::string base_url;  // http://host:port, with or without /v1
  std::string model;     // "": the first of /v1/models
  std::string api_key;
  bool chat = true;  // /v1/chat/completions, else /v1/completions
  bool stream = true;
  bool ignore_eos = true;  // sent as ignore_eos; servers without it are told apart by their usage
  Arrival arrival = Arrival::kClosed;
  int concurrency = 1;    // requests in flight, 1..1024; in an open loop the most: what comes beyond is held_back
  double rate = 1;        // kPoisson, kGamma: requests/s; conversations/s where there are turns
  double burstiness = 1;  // kGamma: shape; 1 is Poisson, less comes in bursts
  double temperature = 0;
  uint64_t seed = 0;  // of arrivals
  double request_seconds = 600;
  const std::atomic<bool>* stop = nullptr;
  std::function<void(size_t done, size_t total)> on_progress;
};

struct LoadRequest {   // what became of one
  double start_s = 0;  // since the run's start
  double ttft_ms = 0, e2e_ms = 0;
  std::vector<double> itl_ms;               // between pieces that carry text
  int input_tokens = 0, output_tokens = 0;  // by the server's usage; 0 when it sends none
  std::string text, finish_reason, error;   // error empty: it went well
  int status = 0;
  // Of an error: refused, timeout, cut, too_large, stopped (names of HttpEnd), http_<status>, stream_error (an error
  // object in a stream), bad_json, earlier_turn. The same word for the same thing, where sentences differ.
  std::string error_kind;
};

struct LoadRun {
  std::vector<LoadRequest> requests;  // in the order of the prompts
  double seconds = 0;
  double client_cpu = 0;  // cores used by this process meanwhile; near the number of its cores the client was the limit
  int client_cores = 1;   // that this process may use
  // At 99 of 100 moments of the run a thread of this process that was due ran within so many milliseconds.
  double client_lag_ms = 0;
  double late_ms = 0;      // open loop: 99 of 100 requests were sent so soon after they were due, those held back aside
  size_t held_back = 0;    // open loop: requests that were due while `concurrency` others were in flight
  std::string model, url;  // what was asked, and where
};

// Runs every prompt once. Fails with kDevice when the server cannot be reached at all, kInvalidRequest for options that
// contradict each other. Errors of single requests are part of the result.
LoadRun run_load(const LoadOptions& options, const std::vector<LoadPrompt>& prompts);

// Why the figures of a run would be about this process and not about the server; empty when they are not.
struct ClientLimits {
  double cpu = 0.8;    // of client_cores
  double lag_ms = 20;  // of client_lag_ms and late_ms
};
std::string client_limit(const LoadRun& run, const ClientLimits& limits = {});

struct Quantiles {  // linear between the two nearest values; std is of the values themselves, not of a sample
  double mean = 0, median = 0, p90 = 0, p95 = 0, p99 = 0, std = 0, max = 0;
};
Quantiles quantiles_of(std::vector<double> values);

struct LoadFigures {
  int completed = 0, failed = 0;
  double duration_s = 0, request_throughput = 0, input_throughput = 0, output_throughput = 0, total_throughput = 0;
  int64_t total_input = 0, total_output = 0;
  Quantiles ttft_ms, tpot_ms, itl_ms, e2e_ms;
  double mean_concurrency = 0;
  int without_usage = 0;              // completed ones whose output tokens are pieces of the stream, for want of usage
  double peak_output_throughput = 0;  // pieces with text in the best second
  int peak_concurrency = 0;
};
// Of the requests that went well; failed ones are counted only.
LoadFigures figures_of(const LoadRun& run);

// Milliseconds that a request must keep to count; negative: not asked for.
struct Goals {
  double ttft_ms = -1, tpot_ms = -1, e2e_ms = -1;
  bool any() const { return ttft_ms >= 0 || tpot_ms >= 0 || e2e_ms >= 0; }
};
// Requests/s that went well and kept every goal.
double goodput_of(const LoadRun& run, const Goals& goals);

// Half the width of the 95 % confidence interval of the mean (Student's t); 0 for fewer than two values.
double confidence95(const std::vector<double>& values);

}  // namespace mettle
