// Passes over weight bytes that look for what a checkpoint must not hold. Each returns the position of the first
// offending element, or -1. They run at memory speed: every byte of a model goes through one of them once.
#pragma once
#include <cstdint>

#include "base/thread_team.h"

namespace mettle {

int64_t find_bad_scale(const uint8_t* e4m3, int64_t count);  // NaN or with the sign set; zero is fine
int64_t find_nan_e4m3(const uint8_t* e4m3, int64_t count);
// NaN or infinite; the data may be unaligned.
int64_t find_not_finite_bf16(const uint8_t* bf16, int64_t count);
int64_t find_not_finite_f32(const uint8_t* f32, int64_t count);

// One of these passes over elements of `element` bytes, shared by the team when there is one and enough to do.
int64_t find_first(ThreadTeam* team, int64_t (*find)(const uint8_t* data, int64_t count), const uint8_t* data,
                   int64_t count, int64_t element);

}  // namespace mettle
