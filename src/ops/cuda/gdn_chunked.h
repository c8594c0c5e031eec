// gdn over longer sequences in chunks of 32 rows, on tensor cores. With S the state before a chunk, a_i the product of
// the decays of rows 0..i and d_ij that of rows j+1..i:
//   u_i + sum_{j<i} beta_i d_ij (k_i . k_j) u_j = beta_i (v_i - a_i S^T k_i),      so      u = T (v - a S^T k),
//   o_i = a_i S^T q_i + sum_{j<=i} d_ij (q_i . k_j) u_j      and      S <- a_31 S + sum_j d_31j k_j u_j^T.
// `prepare` takes all chunks at once: T (its columns times beta) and the weights of o's sum. `scan` goes through the
// chunks of a sequence, the state in registers. Operands of tensor cores are pairs of bf16, high and low part, and a
// product of two pairs leaves out low times low: 16 bits of each operand count, sums are float32. Or the high parts
// alone are multiplied, 8 bits.
#pragma once
#include "ops/cuda/gdn_recurrent.h"

#if defined(__CUDACC__)
#define METTLE_GDN_HD __host__ __device__ __forceinline__
#else
#define METTLE_GDN_HD inline
#endif

namespace mettle::cuda {

inline constexpr int kGdnChunk = 32;
inline constexpr int kGdnShort = 15;  // rows of a sequence, at most, that beside others goes four rows at a time
inline constexpr int kGdnScanThreads = 256;

// Where the chunks of a step stand: those of a sequence follow each other from slot first_row / 16 on. No two sequences
// meet: with 16 rows and more, ceil(rows / 32) <= floor(rows / 16).
METTLE_GDN_HD int gdn_first_chunk(int first_row) { return first_row / (kGdnShort + 1); }
METTLE_GDN_HD int gdn_chunk_count(int q_len) { return (q_len + kGdnChunk - 1) / kGdnChunk; }
inline int64_t gdn_chunk_slots(int64_t rows) { return rows / (kGdnShort + 1) + 1; }

// Elements of a matrix in pieces of eight that are exchanged, so that eight rows of one piece lie in different banks.
// [32, dk] and [32, 32].
METTLE_GDN_HD int gdn_key_place(int dk, int row, int column) {
  return row * dk + ((column / 8 ^ (row & 7)) * 8) + column % 8;
}
METTLE_GDN_HD int gdn_solved_place(int row, int column) {
  return row * kGdnChunk + ((column / 8 ^ (row / 2 & 3)) * 8) + column % 8;
}
METTLE_GDN_HD constexpr int gdn_key_part(int dk) { return kGdnChunk * dk; }  // elements of one of the four parts
inline constexpr int kGdnSolvedPart = kGdnChunk * kGdnChunk;

// What `prepare` leaves for `scan`, by chunk.
struct GdnChunks {
  int slots = 0;
  int least = 1;               // rows of a sequence that goes through chunks; shorter ones are left alone
  uint16_t* keys = nullptr;    // [slots, key_heads, 4, 32 * dk]: k high, k low, q high, q low
  uint16_t* solved = nullptr;  // [slots, value_heads, 4, 32 * 32]: T high, T low, weights of o high, low
  float* decays = nullptr;     // [slots, value_heads, 2, 32]: a_i, d_31i
};

// Bytes of shared memory that a block of `scan` takes: two chunks, sums over half of the state, and u.
constexpr size_t gdn_scan_bytes(int dk) {
  const size_t chunk =
      size_t{8} * gdn_key_part(dk) + 8 * kGdnSolvedPart + 8 * kGdnChunk + size_t{4} * kGdnChunk * (kGdnColumns + 4);
  const size_t tile = 512;
  return 2 * chunk + (8 + 2) * (kGdnChunk / 8) * tile;
}

// From the projections to `read` and the new states; the core of padding becomes zero. Beside others, a sequence of few
// rows is left to `four_rows`.
void gdn_chunked(const GdnRecurrent& a, GdnChunks chunks, void* stream);
void gdn_chunk_conv(const GdnRecurrent& a, void* stream);
void gdn_chunk_prepare(const GdnRecurrent& a, const GdnChunks& chunks, void* stream);
void gdn_chunk_scan(const GdnRecurrent& a, const GdnChunks& chunks, void* stream);

}  // namespace mettle::cuda
