// What kernels are timed with: random rows and matrices, the 1.4 B shape, backends by name.
#pragma once
#include <random>
#include <string>
#include <string_view>

#include "base/error.h"
#include "ops/dispatch.h"

namespace mettle::bench {

std::mt19937& random();

// Speed does not depend on the values, but every matrix has its own memory.
PackedMatrix random_matrix(WeightFormat format, int64_t rows, int64_t cols);

struct Shape14 {
  static constexpr int kHidden = 1024, kLayers = 24, kExperts = 32, kTopK = 4, kWidth = 512, kHeads = 16, kKvHeads = 4,
                       kHeadDim = 128;
  static constexpr int kVocab = 32000;
  static MoeProblem moe() { return {.hidden = kHidden, .experts = kExperts, .top_k = kTopK, .width = kWidth}; }
  static AttentionProblem attention() {
    return {.hidden = kHidden,
            .heads = kHeads,
            .kv_heads = kKvHeads,
            .head_dim = kHeadDim,
            .rotary_dim = kHeadDim,
            .qkv_format = WeightFormat::kNvfp4,
            .out_format = WeightFormat::kNvfp4};
  }
  static LinearProblem head() { return {kHidden, kVocab, WeightFormat::kNvfp4, Activation::kBf16}; }
};

template <class Op>
const Backend<Op>& backend(std::string_view name) {
  for (const Backend<Op>* b : backends_of<Op>())
    if (b->name == name) return *b;
  fail(Code::kInternal, "bench: no backend " + std::string(name));
}

// Random in bfloat16, zeros in other formats.
struct Rows {
  Buffer memory;
  TensorView view;
  Rows(DType dtype, int64_t rows, int64_t cols);
};

}  // namespace mettle::bench
