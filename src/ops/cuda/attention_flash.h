// Device side of attention's flash method. A step is: qkv product, prepare (norm, rotary, append to the cache), core,
// output product. The query heads of a kv head and the rows of a sequence are packed as rows of one matrix (packed row
// = row * group + head), so keys and values are read once for all of them. Sequences of at most 16 packed rows (decode)
// are split along the keys and merged; longer ones are cut into tiles of 128 packed rows.
#pragma once
#include <algorithm>
#include <cstdint>

#include "ops/attention.h"
#include "ops/batch.h"
#include "ops/cuda/product_bulk.h"

#if defined(__CUDACC__)
#define METTLE_ATTENTION_HD __host__ __device__
#else
#define METTLE_ATTENTION_HD
#endif

namespace mettle::cuda {

inline constexpr int kFewPacked = 16;      // packed rows of a sequence that take the split path
inline constexpr int kMostSplits = 64;     // of one sequence
inline constexpr int kSplitSlots = 512;    // sequences x splits that one launch covers
inline constexpr int kSplitKeys = 64;      // least keys of a split
inline constexpr int kLongContext = 2048;  // beyond it a split takes at least twice as many

struct AttentionFlash {
  int rows = 0, sequences = 0, most_q = 1, most_context = 0;  // padding included
  int heads = 0, kv_heads = 0, head_dim = 0, rotary_dim = 0, block_size = 16;
  bool gate = false, qk_norm = true, plus_one = false;
  float eps = 0;
  float exponent = 0;  // log2(e) / sqrt(head_dim) * k_scale
  bool codes = false;  // the caches hold E4M3, else bf16
  float k_scale = 1, v_scale = 1;
  const DeviceSequence* sequence = nullptr;
  const int32_t *row_sequence = nullptr, *row_position = nullptr, *blocks = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr, *inv_freq = nullptr;
  void *k_cache = nullptr, *v_cache = nullptr;
  // Scratch.
  float* qkv = nullptr;         // [rows, qkv_rows]
  uint16_t* q = nullptr;        // [rows, heads, head_dim] bf16 after norm and rotary
  uint16_t* core = nullptr;     // [rows, heads, head_dim] bf16
  float* part = nullptr;        // [slots, kv_heads, packed rows, head_dim]: sums of one split
  float* part_stats = nullptr;  // [slots, kv_heads, packed rows, 2]: largest score, sum of exponentials
  BulkScratch bulk = {};        // where products of a step's rows are bulk_product()'s

  METTLE_ATTENTION_HD int group() const { return heads / kv_heads; }
  METTLE_ATTENTION_HD bool few(int q_len) const { return q_len * group() <= kFewPacked; }
  METTLE_ATTENTION_HD int qkv_width() const { return (heads * (gate ? 2 : 1) + 2 * kv_heads) * head_dim; }
  // Place of a cached row of a kv head, in elements. `table`: of its sequence.
  METTLE_ATTENTION_HD int64_t cache_at(const int32_t* table, int position, int kv_head) const {
    const int64_t block = table[position / block_size];
    return ((block * block_size + position % block_size) * kv_heads + kv_head) * head_dim;
  }
};

// Splits that a sequence may have in a step of so many sequences, and the keys of one.
METTLE_ATTENTION_HD inline int most_splits(int sequences) {
  const int room = kSplitSlots / (sequences < kSplitSlots ? sequences : kSplitSlots);
  return room < kMostSplits ? room : kMostSplits;
}
METTLE_ATTENTION_HD inline int split_keys(int keys, int splits) {
  const int units = (keys + kSplitKeys * splits - 1) / (kSplitKeys * splits);
  const int least = keys > kLongContext && splits > 1 ? 2 : 1;
  return kSplitKeys * (units > least ? units : least);
}
// Packed rows that one launch holds for a sequence: 8 or 16.
inline int packed_rows(const AttentionFlash& a) { return a.most_q * a.group() <= 8 ? 8 : kFewPacked; }

// Splits of the longest sequence that a step of that shape may hold.
inline int launched_splits(const AttentionFlash& a) {
  return std::max(1, std::min(most_splits(a.sequences), (a.most_context + kSplitKeys - 1) / kSplitKeys));
}

// No batch of so many rows and sequences has more tiles.
inline constexpr int kTileRows = 128, kTileKeys = 64;
inline int64_t launched_tiles(const AttentionFlash& a) {
  const int64_t all = int64_t{a.rows} * a.group();
  return all / kTileRows + std::min<int64_t>(a.sequences, all / (kFewPacked + 1));
}
// Shared memory of a block of the tiles kernel.
// Queries and two stages of keys and values; of codes one stage, and the next codes.
inline constexpr int tile_shared_bytes(int head_dim, bool codes) {
  return codes ? (kTileRows * 2 + 2 * kTileKeys * 3) * head_dim : (kTileRows + 4 * kTileKeys) * head_dim * 2;
}

void attention_flash(const AttentionFlash& a, const AttentionWeights& weights, const uint16_t* x, float* partial,
                     void* stream);
// The core alone; on the stream behind what wrote q and the cache.
void attention_split(const AttentionFlash& a, void* stream);
void attention_tiles(const AttentionFlash& a, void* stream);

// What one launch of the split kernel left in `part`: by sequence, split, kv head, and `rows` packed rows.
struct SplitPart {
  int first_sequence = 0, sequences = 0, splits = 0, rows = 0;
};
void attention_merge(const AttentionFlash& a, const SplitPart& part, void* stream);

}  // namespace mettle::cuda
