// Device side of gdn's recurrent method: projections, convolution with gates, the delta rule with the state in
// registers, gated norm, output projection. One row a sequence (decode) takes three launches: projections, all that
// lies between (a block owns a whole value head), output. Longer sequences: convolution, the delta rule (a block owns
// 32 columns of a head) and norm stand by themselves.
#pragma once
#include <cstdint>
#include <limits>

#include "ops/batch.h"
#include "ops/gdn.h"

namespace mettle::reference {
class Carver;
}

namespace mettle::cuda {

struct GdnChunks;  // gdn_chunked.h

inline constexpr int kGdnColumns = 32;       // of a value head, that one group of 128 threads holds
inline constexpr int kGdnFewRows = 16;       // of a step, that one pass over the weights takes without shared memory
inline constexpr int kGdnOutputSplits = 8;   // of the output product along k, at most
inline constexpr int kGdnOutputParts = 512;  // rows of partial times splits
inline constexpr int kGdnHalfRows = 64;      // of decode, more than kGdnFewRows: projections as two sums over k

struct GdnRecurrent {
  int rows = 0, sequences = 0;  // padding included
  int most_q = 1;
  bool four_rows = false;                         // of longer sequences, four rows at a time
  int shares = 1;                                 // sums of qkv and of z over parts of k, one behind the other
  int longest = std::numeric_limits<int>::max();  // `four_rows` leaves alone sequences of more rows
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
  float* parts = nullptr;                             // [at most kGdnOutputParts, hidden]
  int32_t* tickets = nullptr;  // [rows, key_heads], decode: value heads that have read the history of q and k
};

// Whether a step is decode that one kernel takes.
inline bool gdn_decodes(const GdnRecurrent& a) { return a.most_q == 1 && (a.dv == 64 || a.dv == 128); }
// Tickets of a step; a step that is not decode has none.
inline int gdn_tickets(const GdnRecurrent& a) { return gdn_decodes(a) ? a.rows * a.key_heads : 0; }

// All kernels of a step. With `chunks` longer sequences go through those.
void gdn_recurrent(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, float* partial, void* stream,
                   const GdnChunks* chunks = nullptr);
// The projections of x into qkv, z and ba; clears the tickets. Returns the shares it left.
int gdn_project(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, void* stream);
bool gdn_project_few(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, void* stream);
// 0: another's.
int gdn_project_tiles(const GdnRecurrent& a, const GdnWeights& weights, const uint16_t* x, void* stream);
// The output product of core, or false: it is another product's.
bool gdn_output_tiles(const GdnRecurrent& a, const GdnWeights& weights, float* partial, void* stream);
void gdn_clear(const GdnRecurrent& a, void* stream);  // the tickets alone
// The recurrence: for one row of every sequence, from the projections to the core; of longer ones, a row or four rows
// at a time, into `read`.
void gdn_decode(const GdnRecurrent& a, void* stream);
void gdn_one_row(const GdnRecurrent& a, void* stream);
void gdn_four_rows(const GdnRecurrent& a, void* stream);

// Host code of the backends that are built of these kernels: what they support, and a call with its scratch.
Verdict gdn_supports(const GdnProblem& p, const Device& device);
GdnRecurrent gdn_scratch(reference::Carver& c, const GdnProblem& p, int64_t rows);
GdnRecurrent gdn_call(reference::Carver& c, const GdnArgs& a);

}  // namespace mettle::cuda
