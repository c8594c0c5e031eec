// What cpu_gemv, cpu_gemm and the `cpu` backends share: which kernel multiplies which matrix, and its scratch.
#pragma once
#include <atomic>

#include "base/thread_team.h"
#include "ops/backend.h"
#include "ops/cpu/kernels/kernels.h"
#include "ops/cpu/reference_math.h"

namespace mettle::cpu {

// kGemv reads the packed weights once per 8 rows; kGemm decodes a panel of tiles once for all rows.
enum class Method { kGemv, kGemm };

const Kernels& kernels_of(Isa isa);
// The tactics of attention and gdn: each instruction set with each method for the projections ("avx512/gemm"). Scalar
// gemm only where there is no other set: it could win nowhere else, and its proof is the longest.
std::vector<Tactic> isa_method_tactics(const Device& device);
// Those of a method for prompts: gemm alone.
std::vector<Tactic> isa_gemm_tactics(const Device& device);
inline Method method_of(const Tactic& tactic) { return static_cast<Method>(tactic.variant); }
TileMatrix tile_matrix(const PackedMatrix& m);
// A matrix of that format as far as scratch sizes need it.
TileMatrix shape_of(WeightFormat format, int64_t rows, int64_t cols);

// A product of one matrix: its kernel and the type of the rows it reads.
struct Product {
  const ProductKernel* kernel = nullptr;
  bool bf16 = false;  // rows are bfloat16, else float
  size_t panel_bytes(const TileMatrix& m) const { return kernel->panel_bytes == nullptr ? 0 : kernel->panel_bytes(m); }
};
// From this many rows on the arithmetic counts, not the way through memory.
inline constexpr int kManyRows = 16;
// Pieces into which work for a team is cut. Many rows: more pieces than members, who take one after the other, so that
// none waits long for one that is held up. Few rows: a piece for each, long runs through memory.
inline int pieces_of(int rows, int members) { return members > 1 && rows >= kManyRows ? 4 * members : members; }
// Calls fn(piece) for the pieces of this member; `next` starts at zero and is shared by the team.
template <class F>
void each_piece(std::atomic<int>& next, int pieces, int member, int members, F&& fn) {
  if (pieces == members) return fn(member);
  for (int piece = next.fetch_add(1); piece < pieces; piece = next.fetch_add(1)) fn(piece);
}

Product product_of(const Tactic& tactic, Method method, Activation activation, WeightFormat format);

// Tiles [begin, end) of m times the rows; panel: panel_bytes() of this member.
void multiply_tiles(const Product& product, const TileMatrix& m, Span tiles, void* panel, const InRows& in,
                    const OutRows& out);
// The same for a buffer of rows that the op itself wrote, as the product reads it (bfloat16 or float).
inline InRows own_rows(const void* x, int64_t cols, int count) { return {x, cols, nullptr, count}; }
// Asks for the beginning of a tile that is read soon and does not follow what is read now.
void prefetch_tile(const TileMatrix& m, int64_t tile);
// All tiles, spread over the team; panels + member * panel_stride is a member's panel.
void multiply(const Product& product, const TileMatrix& m, uint8_t* panels, size_t panel_stride, const InRows& in,
              const OutRows& out, Stream& stream);

// Rows as a product reads them: x itself, or its float copy when x is bfloat16 and the product is not.
struct Inputs {
  TensorView x;
  float* widened = nullptr;  // [rows, cols], or null when nobody needs it
  InRows rows(const Product& product, int count, const int32_t* index = nullptr) const {
    const bool copy = !product.bf16 && x.dtype != DType::kF32;
    return {copy ? widened : x.data, x.shape[1], index, count};
  }
};
void widen_rows(const Tactic& tactic, const Inputs& inputs, Stream& stream);

// Refuses devices that are no CPU, and nvfp4 with columns that are no multiple of 16.
Verdict cpu_supports(const Device& device, std::initializer_list<std::pair<WeightFormat, int64_t>> formats_and_cols);

}  // namespace mettle::cpu
