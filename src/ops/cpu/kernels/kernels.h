// The instruction-set kernels behind the CPU backends: one table per instruction set, each compiled by its own source
// file with its own flags. Plain data only: a source built for AVX-512 must not emit an inline function that another
// file shares (the linker keeps one copy of it, and the program would die on an older CPU).
//
// Every kernel computes an output in one order of operations, whatever the number of rows or tiles beside it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mettle::cpu {

enum class Weights : uint8_t { kNvfp4, kBf16, kF32 };

// A PackedMatrix in tile16 layout (ops/packed.h), as plain data.
struct TileMatrix {
  Weights weights = Weights::kBf16;
  int64_t rows = 0, cols = 0, tiles = 0, k_padded = 0;
  int64_t tile_bytes = 0;
  const uint8_t* data = nullptr;
  const uint8_t* scales = nullptr;
  const float* row_scale = nullptr;
  const float* k_scale = nullptr;  // per 128 columns, or null
  int64_t k_blocks = 0;
  __attribute__((always_inline)) const uint8_t* tile(int64_t t) const { return data + t * tile_bytes; }
};

// Input rows of a product: row i of n is x + (index ? index[i] : i) * stride elements; float or bfloat16 by the kernel.
struct InRows {
  const void* x = nullptr;
  int64_t stride = 0;
  const int32_t* index = nullptr;
  int n = 0;
};

// Output rows: row i goes to y + (index ? index[i] : i) * stride, tile t to columns (t - first_tile) * 16. Without
// weight the values are stored, with weight y += weight[i] * value.
struct OutRows {
  float* y = nullptr;
  int64_t stride = 0;
  const int32_t* index = nullptr;
  const float* weight = nullptr;
  int64_t first_tile = 0;
};

// A way to multiply: prepare() a chunk of tiles once, multiply() it with rows as often as there are row blocks.
//   gemv  reads the packed weights as they are, once per 8 rows
//   gemm  decodes the chunk into `panel` first
struct ProductKernel {
  int chunk_tiles = 1;
  // Bytes of `panel` for a matrix with k_padded columns; 0 when the packed weights are read as they are.
  size_t (*panel_bytes)(const TileMatrix& m) = nullptr;
  void (*prepare)(const TileMatrix& m, int64_t tile, int tiles, void* panel) = nullptr;
  void (*multiply)(const TileMatrix& m, int64_t tile, int tiles, const void* panel, const InRows& in,
                   const OutRows& out) = nullptr;
};

// One (row block, key/value head) of attention: `queries` vectors that share a key/value head, over keys 0..their
// limit.
struct AttendArgs {
  int queries = 0;  // <= kMaxQueries
  int head_dim = 0;
  float scale = 1;                 // 1 / sqrt(head_dim), and that of the cache's keys
  const void* q = nullptr;         // [queries, head_dim] floats, already times scale; of a tile see kTileQueries
  const int32_t* limit = nullptr;  // keys that query i may see, >= 1
  int max_limit = 0;
  const void* k_cache =
      nullptr;  // of this head: position p at block_table[p / block_size] * block_stride + p % block_size * key_stride
  const void* v_cache = nullptr;
  const int32_t* block_table = nullptr;
  int block_size = 0;
  int64_t block_stride = 0, key_stride = 0;  // elements
  float* out = nullptr;                      // [queries, head_dim]
  bool round_p = false;                      // tiles: probabilities are rounded to bfloat16
  float* scratch = nullptr;                  // attend_scratch() or attend_tile_scratch() floats
};
inline constexpr int kMaxQueries = 16;
// 16 keys, their scores, zeros; of codes also 16 keys and values as floats.
constexpr size_t attend_scratch(int head_dim, bool codes) {
  return static_cast<size_t>(16 * head_dim + 16 + kMaxQueries * 16 + head_dim + (codes ? 32 * head_dim : 0));
}

// Tiles: q and out are [queries, tile_dim(head_dim)], q not scaled, zero behind the head; floats, for attend_pairs_*
// bfloat16. Queries are in the order of their rows, so limits never fall.
inline constexpr int kTileQueries = 64, kTileKeys = 64;
constexpr int tile_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }
// Panels of keys and values, probabilities, scores, 16 rows, zeros.
constexpr size_t attend_tile_scratch(int head_dim) {
  return static_cast<size_t>((2 * kTileKeys + 16 + 1) * tile_dim(head_dim) + 2 * kTileQueries * kTileKeys);
}

// The delta rule over the rows of one sequence for one value head. q and k are normalised.
struct DeltaArgs {
  int rows = 0, dk = 0, dv = 0;
  const float* q = nullptr;  // row t at q + t * row_stride
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t row_stride = 0;
  const float* decay = nullptr;  // exp(g), row t at decay + t * gate_stride
  const float* beta = nullptr;
  int64_t gate_stride = 0;
  float* state = nullptr;  // [dk, dv], in and out
  float* out = nullptr;    // row t at out + t * out_stride
  int64_t out_stride = 0;
  float* scratch = nullptr;  // chunks: delta_chunk_scratch() floats
};
// Rows of a chunk.
inline constexpr int kDeltaRows = 16;
// Queries and keys, keys by lanes, their products, what the rows read of the state and what they write.
constexpr size_t delta_chunk_scratch(int dk, int dv) {
  return static_cast<size_t>(kDeltaRows * (3 * dk + 2 * kDeltaRows + 3 * dv));
}

struct Kernels {
  ProductKernel gemv_f32, gemm_f32;    // float activations
  ProductKernel gemv_bf16, gemm_bf16;  // bfloat16 activations; only where has_bf16
  bool has_bf16 = false;

  void (*widen)(const uint16_t* in, float* out, int64_t n) = nullptr;  // bf16 to float
  // h = silu(gate) * up, optionally rounded to bf16 and kept as float or written as bf16.
  void (*silu_mul)(const float* gate, const float* up, void* h, int64_t n, bool round_bf16, bool as_bf16) = nullptr;
  // out = in, rounded to bf16 and kept as float, or written as bf16, or unchanged.
  void (*round_to)(const float* in, void* out, int64_t n, bool round_bf16, bool as_bf16) = nullptr;
  void (*add)(float* to, const float* from, int64_t n) = nullptr;  // to += from
  // out = in * scale * (one + weight), as float or rounded to bf16.
  void (*normed)(const float* in, float scale, const float* weight, float one, void* out, int64_t n,
                 bool as_bf16) = nullptr;
  void (*scaled)(const float* in, float factor, float* out, int64_t n) = nullptr;  // out = in * factor
  // Rotates the pairs (head[i], head[half + i]) by their angles.
  void (*rotate)(float* head, const float* cosines, const float* sines, int64_t half) = nullptr;
  void (*sigmoid)(const float* in, float* out, int64_t n) = nullptr;
  void (*silu)(const float* in, float* out, int64_t n) = nullptr;
  void (*exp)(const float* in, float* out, int64_t n) = nullptr;
  // The largest of n values; false when one is not finite.
  bool (*max_finite)(const float* in, int64_t n, float* most) = nullptr;
  // out = exp((in - most) * factor), which may be null; returns the sum.
  double (*exp_sum)(const float* in, float most, float factor, float* out, int64_t n) = nullptr;
  float (*dot)(const float* a, const float* b, int64_t n) = nullptr;
  void (*attend_f32)(const AttendArgs& a) = nullptr;
  void (*attend_bf16)(const AttendArgs& a) = nullptr;
  void (*attend_e4m3)(const AttendArgs& a) = nullptr;  // codes, without their scale
  // Tiles of queries, many of them; pairs of bfloat16 only where has_bf16.
  void (*attend_tile_f32)(const AttendArgs& a) = nullptr;
  void (*attend_tile_bf16)(const AttendArgs& a) = nullptr;
  void (*attend_tile_e4m3)(const AttendArgs& a) = nullptr;
  void (*attend_pairs_bf16)(const AttendArgs& a) = nullptr;
  void (*attend_pairs_e4m3)(const AttendArgs& a) = nullptr;
  void (*to_e4m3)(const float* in, float scale, uint8_t* out, int64_t n) = nullptr;  // out = in / scale, saturating
  void (*delta)(const DeltaArgs& a) = nullptr;                                       // row by row
  void (*delta_chunk)(const DeltaArgs& a) = nullptr;                                 // 16 rows at a time
};

extern const Kernels kernels_scalar, kernels_avx2, kernels_avx512, kernels_avx512bf16;

}  // namespace mettle::cpu
