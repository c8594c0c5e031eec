// The rows of one step. Ragged is the only form of a batch: per sequence any number of new rows over any context, so
// decode, chunked prefill, mixed steps and draft verification are the same call.
#pragma once
#include <cstdint>
#include <span>

namespace mettle {

struct BatchSequence {
  int first_row = 0;                     // of this sequence among the step's rows; sequences are in row order, no gaps
  int q_len = 1;                         // new rows, >= 1
  int ctx_len = 0;                       // tokens already in the caches; row i has position ctx_len + i
  const int32_t* block_table = nullptr;  // paged cache: block of each block_size positions, covers ctx_len + q_len
  int state_in = -1;                     // recurrent state slot to start from; -1 = zeros (ctx_len is 0 then)
  int state_out = -1;                    // slot that takes the state after the last row; may equal state_in
};

struct Batch {
  int rows = 0;
  int block_size = 16;  // positions per cache block
  std::span<const BatchSequence> sequences;
};

}  // namespace mettle
