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
  int concurrency = 1;    // kClosed: requests in flight; else the most that may be (more is an error of the client)
  double rate = 1;        // kPoisson, kGamma: requests/s
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
};

struct LoadRun {
  std::vector<LoadRequest> requests;  // in the order of the prompts
  double seconds = 0;
  double client_cpu = 0;  // cores used by this process meanwhile; near the number of its cores the client was the limit
};

// Runs every prompt once. Fails with kDevice when the server cannot be reached at all, kInvalidRequest for options that
// contradict each other. Errors of single requests are part of the result.
LoadRun run_load(const LoadOptions& options, const std::vector<LoadPrompt>& prompts);

struct Quantiles {
  double mean = 0, median = 0, p90 = 0, p95 = 0, p99 = 0, std = 0;
};

struct LoadFigures {
  int completed = 0, failed = 0;
  double duration_s = 0, request_throughput = 0, input_throughput = 0, output_throughput = 0, total_throughput = 0;
  int64_t total_input = 0, total_output = 0;
  Quantiles ttft_ms, tpot_ms, itl_ms, e2e_ms;
  double mean_concurrency = 0;
};
LoadFigures figures_of(const LoadRun& run);

}  // namespace mettle
