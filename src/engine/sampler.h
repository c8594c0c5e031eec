// From a request's parameters to what the sample op wants.
#pragma once
#include <cstdint>
#include <span>

#include "engine/sequence.h"

namespace mettle {

// Number `position` of the stream `seed`, in [0, 1). A request's random numbers depend on nothing else, so its text
// does not depend on its batch.
double random_number(uint64_t seed, uint64_t position);

// Fails with kInvalidRequest; param is the field's name in the OpenAI API.
void check_sampling(const SamplingParams& params, int vocab);

// Fills stop ids, biases and counts of a new sequence, with room for all it may generate.
void prepare_sampling(Sequence& sequence, std::span<const int32_t> eos_ids);
// `ahead`: of the token after the next one. Only where no token depends on those before it, but by the model.
SampleRow sample_row(const Sequence& sequence, int ahead = 0);
bool sampled_alone(const Sequence& sequence);  // no penalty counts its tokens
bool stops(const Sequence& sequence, int32_t token);
void append_token(Sequence& sequence, int32_t token);

}  // namespace mettle
