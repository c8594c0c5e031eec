// Cases of attention over ragged batches with shuffled block tables: decode, chunks, mixed, long and far contexts, and
// designed ones in which every query picks one key (selector), weighs all alike (uniform), or stands far below one key
// whose value is zero (deep, rope_probe: an error of that score is multiplied by what lies between), or where q and p
// all lie at one side of their rounding (steps). Of E4M3 caches also codes that saturate and subnormal ones. Everything
// in the caches that no row may see holds NaN.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "ops/case_weights.h"

namespace mettle {

struct AttentionCaseWeights {
  RawAttention raw;
  AttentionWeights packed;
  std::vector<CaseWeight> memory;
};

// Sequences with their block tables. `twins`: where there are many sequences of one row, sequence i has the inputs of
// sequence i % twins (context, states, row of x): the oracle computes the first ones, the others must have their bits,
// so that every row is looked at however wide the model is.
// No tile is a multiple of kTwins. 0: all differ.
struct CaseBatch {
  std::vector<BatchSequence> sequences;
  std::vector<std::vector<int32_t>> tables;
  int rows = 0, block_size = 16, twins = 0;
  Batch batch() const { return {rows, block_size, sequences}; }
  // What the oracle computes.
  Batch judged() const {
    if (twins == 0) return batch();
    return {twins, block_size, {sequences.data(), static_cast<size_t>(twins)}};
  }
};
inline constexpr int kTwins = 6;
// How many sequences are decoded at once: kernels of a GPU change at 17, 33, 65 and 129 rows, those of a CPU at 65. The
// last count is launched again and again, the others once: states of a hundred sequences are hundreds of MB.
std::vector<int> case_decode_counts(Layout layout, bool small);

struct AttentionCase {
  std::string kind;
  bool exact = false, generic = false;
  std::shared_ptr<const AttentionCaseWeights> weights;
  CaseBatch batch;
  int blocks = 0;
  CaseInput x;
  CaseInput k_cache, v_cache;  // [blocks * block_size, kv_heads * head_dim] before the step; of E4M3 the codes' values
};

// `budget` bounds the multiply-adds of a case roughly.
std::vector<AttentionCase> attention_cases(const AttentionProblem& problem, uint64_t seed, int64_t budget,
                                           Layout layout);
// What is timed: `rows` rows of so many sequences, each over `context` tokens; weights are drawn unless they are
// given.
AttentionCase attention_typical_case(const AttentionProblem& problem, int rows, int sequences, int context,
                                     uint64_t seed, Layout layout,
                                     std::shared_ptr<const AttentionCaseWeights> weights = nullptr);

}  // namespace mettle
