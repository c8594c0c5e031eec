// sample: logits -> token and log-probabilities. The random number is an input, so a token can be judged.
// Order: bias and mask, penalties, temperature, top-k (ties: lowest id), top-p (keeps the token that crosses), min-p
// (relative to the best), inverse of the distribution function over tokens sorted by (logit descending, id ascending).
// Log-probabilities are those of the raw logits. A row with a non-finite logit gives token -1.
#pragma once
#include <span>

#include "ops/backend.h"
#include "tensor/tensor_view.h"

namespace mettle {

struct SampleProblem {
  int vocab = 0;   // columns of logits
  int usable = 0;  // ids below this may be chosen; the rest is padding
  std::string text() const;
  bool operator==(const SampleProblem&) const = default;
};

struct TokenCount {
  int32_t id = 0;
  int32_t in_output = 0;  // times generated
  bool in_prompt = false;
};
struct TokenBias {
  int32_t id = 0;
  float bias = 0;  // -infinity forbids the token
};

struct SampleRow {
  float temperature = 0;  // 0: the best token
  int top_k = 0;          // 0: all
  float top_p = 1, min_p = 0;
  float repetition = 1, presence = 0, frequency = 0;  // repetition counts prompt and output, the others the output
  double random = 0;                                  // [0, 1)
  int top_logprobs = 0;                               // how many alternatives are wanted, 0..20
  std::span<const TokenCount> counts;                 // sparse, by id
  std::span<const TokenBias> biases;
};

struct SampleResult {
  int32_t token = -1;
  float logprob = 0;
  int32_t top_ids[20] = {};
  float top_logprobs[20] = {};
};

// What a GPU reads of SampleRow, in memory that the device can read.
struct DeviceSampleRow {
  float temperature = 0, top_p = 1, min_p = 0, repetition = 1, presence = 0, frequency = 0;
  int32_t top_k = 0, top_logprobs = 0;
  double random = 0;
  int32_t counts_begin = 0, counts = 0, biases_begin = 0, biases = 0;  // into DeviceSample's arrays
};
struct DeviceSample {
  const DeviceSampleRow* rows = nullptr;
  const TokenCount* counts = nullptr;
  const TokenBias* biases = nullptr;
};

struct SampleArgs {
  SampleProblem problem;
  int rows = 0;
  TensorView logits;  // [rows, vocab] f32
  std::span<const SampleRow> params;
  std::span<SampleResult> results;  // on a GPU: in memory that the device can write
  Workspace ws;
  const DeviceSample* device = nullptr;  // present on a GPU: params in its form
};

struct SampleOp {
  static constexpr std::string_view kName = "sample";
  using Problem = SampleProblem;
  using Args = SampleArgs;
};
void check_args(const SampleArgs& args);

}  // namespace mettle
