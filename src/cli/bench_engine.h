// Times of an engine in this process, without server and text.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace mettle {

std::vector<int32_t> random_ids(int count, int vocab, unsigned seed);

struct EngineTimes {
  double first_s = 0;  // from submission until every prompt has its first token
  double rest_s = 0;   // from then to the last token of all
  int64_t tokens_in_rest = 0;
};
// Runs the prompts together, each for `new_tokens` tokens. Fails with kDevice when one ends early.
EngineTimes time_together(Engine& engine, const std::vector<std::vector<int32_t>>& prompts, int new_tokens);

}  // namespace mettle
