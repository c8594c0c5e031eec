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

// The same on a GPU, for kernels. In a captured graph the pointers and counts stay, the contents change, so a kernel
// takes nothing else of a batch; rows and sequences that are there only to fill a graph's bucket are marked.
struct DeviceSequence {
  int32_t first_row = 0, q_len = 0, ctx_len = 0;  // q_len 0: padding
  int32_t block_begin = 0;                        // its block table starts at DeviceBatch::blocks[block_begin]
  int32_t state_in = -1, state_out = -1;
  int32_t unused[2] = {};
};
struct DeviceBatch {
  int rows = 0, sequences = 0, logit_rows = 0;  // padding included: what a launch covers
  int most_q = 1;                               // no sequence has more new rows
  int most_context = 0;                         // no sequence has more positions (ctx_len + q_len)
  const int32_t* ids = nullptr;                 // [rows] tokens; 0 for padding
  const int32_t* row_sequence = nullptr;        // [rows]; -1: padding
  const int32_t* row_position = nullptr;        // [rows]
  const DeviceSequence* sequence = nullptr;     // [sequences]
  const int32_t* blocks = nullptr;              // all block tables
  const int32_t* logit_row = nullptr;           // [logit_rows] the row whose logits are wanted; 0 for padding
};

struct Batch {
  int rows = 0;
  int block_size = 16;  // positions per cache block
  std::span<const BatchSequence> sequences;
  const DeviceBatch* device = nullptr;  // present on a GPU
};

}  // namespace mettle
