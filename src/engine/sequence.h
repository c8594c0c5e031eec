// One request inside the engine.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "ops/sample.h"

namespace mettle {

struct Sequence {
  uint64_t id = 0;              // also its age: ids grow
  std::vector<int32_t> tokens;  // prompt, then what was generated
  int prompt_size = 0;
  int most_new = 0;  // max_tokens, clipped to the context
  SamplingParams params;
  OnToken on_token;

  // Where its state is. Tokens before `computed` are in the caches.
  int computed = 0;
  std::vector<int32_t> blocks;  // of block_size positions each
  int32_t slot = -1;            // of recurrent state

  // For sampling; see sampler.h.
  uint64_t seed = 0;
  std::vector<int32_t> stop_ids;            // sorted
  std::vector<TokenBias> biases;            // sorted by id
  std::vector<TokenBias> biases_and_stops;  // the same with every stop id forbidden: until min_tokens are there
  std::vector<TokenCount> counts;           // sorted by id; kept only when a penalty is set

  int size() const { return static_cast<int>(tokens.size()); }
  int generated() const { return size() - prompt_size; }
  int left() const { return size() - computed; }  // rows until its next token can be chosen
};

}  // namespace mettle
