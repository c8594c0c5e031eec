// Device side of gdn's recurrent method: projections, convolution with gates, the delta rule row by row with the state
// in registers, gated norm, output projection. For decode the norm happens inside the recurrence: one block then owns a
// whole value head; otherwise a block owns 32 columns of one.
#pragma once
#include <cstdint>

#include "ops/batch.h"
#include "ops/gdn.h"

namespace mettle::cuda {

inline constexpr int kGdnColumns = 32;         // of a value head, that one group of 128 threads holds
inline constexpr int kGdnDecodeColumns = 128;  // widest value head that one block holds in decode

struct GdnRecurrent {
  int rows = 0, sequences = 0;  // padding included
  int most_q = 1;
  bool four_rows = false;  // of longer sequences, four rows at a time
  int key_heads = 0, value_heads = 0, dk = 0, dv = 0;
  float eps = 0, q_scale = 0;
  const DeviceSequence* sequence = nullptr;
  const int32_t* row_sequence = nullptr;
  const float *taps = nullptr, *a_log = nullptr, *dt_bias = nullptr, *norm = nullptr;
  float *conv_state = nullptr, *state = nullptr;
  // Scratch.
  float *qkv = nullptr, *z = nullptr, *ba = nullptr;  // [rows, channels], [rows, values], [rows, 2 * value_heads]
  float* conv = nullptr;                              // [rows, channels]: after silu; q and k normalised
  float* gates = nullptr;                             // [rows, value_heads, 2]: beta, decay
  float* read = nullptr;                              // [rows, values]: S^T q before the norm
  uint16_t* core = nullptr;                           // [rows, values] bf16
};

void gdn_recurrent(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, float* partial, void* stream);
// The projections of x into qkv, z and ba.
void gdn_project(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, void* stream);
// The recurrence: for one row of every sequence, with norm and gate, into core; of longer ones, a row or four rows at a
// time, into `read`.
void gdn_decode(const GdnRecurrent& a, void* stream);
void gdn_one_row(const GdnRecurrent& a, void* stream);
void gdn_four_rows(const GdnRecurrent& a, void* stream);

}  // namespace mettle::cuda
