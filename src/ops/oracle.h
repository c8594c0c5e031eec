// The oracles: host float64 code on the raw checkpoint tensors. They include no backend and no packing header, never
// serve, and are the root of every proof. Each computes the rows that are asked for.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention.h"
#include "ops/expected.h"
#include "ops/gdn.h"
#include "ops/join.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/sample.h"

namespace mettle::oracle {

// `exact`: scalar functions are rounded to float32 and error terms are zero (the exact cases of the judge).
struct Options {
  Numerics numerics;
  bool exact = false;
};

// x: values of the input rows, already rounded to the activation dtype. rows: indices of the rows to compute.
Expected linear(const LinearProblem& problem, const RawSegments& weight, const TensorView& x, std::span<const int> rows,
                const Options& options);

// Router scores with their sigma, and the weights of the given ids ([all rows, top_k]).
struct RouteExpected {
  std::vector<double> score, sigma;  // [rows, experts]
  Expected weights;                  // [rows, top_k] f32, of the given ids
};
RouteExpected route(const MoeProblem& problem, const RawMoe& weights, const TensorView& x, std::span<const int> rows,
                    const int32_t* ids, const Options& options);
// The selection the formulas give: ids by descending score, lowest id on ties, and its weights (float64 in f32).
void select(const MoeProblem& problem, const RawMoe& weights, const TensorView& x, int32_t* ids, float* weights_out);
// partial under the backend's own selection (ids [all rows, top_k]); weights are recomputed from the scores.
Expected moe(const MoeProblem& problem, const RawMoe& weights, const TensorView& x, std::span<const int> rows,
             const int32_t* ids, const Options& options);

// k and v rows that the step appends, [all rows, kv_heads * head_dim], cache dtype.
struct AppendExpected {
  Expected k, v;
};
AppendExpected attention_append(const AttentionProblem& problem, const RawAttention& weights, const Batch& batch,
                                const TensorView& x, const Options& options);
// partial under the caches as the backend left them (its own appended rows included).
Expected attention(const AttentionProblem& problem, const RawAttention& weights, const Batch& batch,
                   const TensorView& x, const TensorView& k_cache, const TensorView& v_cache, std::span<const int> rows,
                   const Options& options);

// Outputs of all rows, and state and conv_state of the sequences' state_out slots, from the states before the step.
struct GdnExpected {
  Expected partial;             // [rows of the batch, hidden]
  std::vector<Expected> state;  // per sequence [value_heads * dk, dv]
  std::vector<Expected> conv;   // per sequence [channels, 3]
};
GdnExpected gdn(const GdnProblem& problem, const RawGdn& weights, const Batch& batch, const TensorView& x,
                const TensorView& conv_state, const TensorView& state, const Options& options);

// The residual after the step, and x under the backend's own residual.
Expected join_residual(const JoinProblem& problem, const TensorView& residual_before,
                       std::span<const float* const> partials, const Options& options);
Expected join_x(const JoinProblem& problem, const TensorView& residual_after, const float* weight,
                const Options& options);

// Tokens that are right for a row: positions [first, last] in the order (adjusted logit descending, id ascending),
// since the random number and top_p are allowed an error of ten sigmas. logprob of any token of the raw logits.
struct SampleExpected {
  bool finite = true;          // else, also when every token is forbidden, the token must be -1
  std::vector<int32_t> right;  // acceptable ids
};
SampleExpected sample(const SampleProblem& problem, const float* logits, const SampleRow& row);
double logprob(const SampleProblem& problem, const float* logits, int32_t token, double* sigma);
// The largest logit and the logarithm of the sum of exp(logit - top): what all log-probabilities of a row share.
struct LogitSum {
  double top, log_sum;
};
LogitSum logit_sum(const SampleProblem& problem, const float* logits);
double logprob(const SampleProblem& problem, const LogitSum& sum, float logit, double* sigma);

// Sum of k products in float32 in any order: one sigma (docs/proofs.md). magnitude = sqrt(sum x^2 w^2), peak = largest
// |prefix sum|.
double sum_sigma(int64_t k, double magnitude, double peak);

}  // namespace mettle::oracle
