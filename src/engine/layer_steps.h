// The steps that proofs of whole layers run: sequences of their own in the first blocks and slots of the caches.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/runner.h"

namespace mettle {

class LayerSteps {
 public:
  struct Turn {  // new rows of a sequence
    int sequence = 0, rows = 0;
  };
  using Turns = std::vector<Turn>;
  static constexpr int kMostSequences = 3;

  // tokens: a sequence takes no more.
  LayerSteps(Runner& runner, const Runner::Sizes& sizes, int tokens);
  // Of these turns as much as fits; false when nothing does. `before` is told of rows and logit rows.
  bool run(const Turns& turns, const std::function<void(int rows, std::span<const int32_t> logit_rows)>& before);
  void begin_anew();  // all sequences
  // What the sequences may take of the caches.
  int64_t blocks() const { return int64_t{sequences_} * blocks_each_; }
  int64_t slots() const { return sizes_.slots > 0 ? sequences_ : 0; }

 private:
  Runner& runner_;
  Runner::Sizes sizes_;
  int vocab_ = 0, sequences_ = 0, blocks_each_ = 0;
  int64_t tokens_ = 0;
  std::vector<std::vector<int32_t>> tables_;
  std::vector<int> lengths_;
};

// Multiply-adds of a row through one layer of each kind.
int64_t work_of_a_row(std::span<const AnyProblem> problems);

}  // namespace mettle
