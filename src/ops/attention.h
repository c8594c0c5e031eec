// attention: projections, q/k norm, partial rotary (pairs i, i + rotary/2), append to the paged cache, causal
// grouped-query attention over a ragged batch, sigmoid gate, output projection. Formulas: Qwen3-MoE, Qwen3.5-MoE
// (docs/ops.md).
//   rows of qkv: per query head [q (head_dim) | gate (head_dim) if gate], then k heads, then v heads
//   q, k = rope(norm(q or k));  o = softmax(q k^T / sqrt(head_dim)) v;  partial = Wo (o * sigmoid(gate))
//   query head h reads kv head h / (heads / kv_heads);  angle = float32(position) * inv_freq in float32
// With several ranks each holds some of the heads; partial is the rank's share.
// An E4M3 cache holds round(k / k_scale) and round(v / v_scale), to nearest even, at most 448 in size, NaN where it was
// NaN; what is read is code * scale. Of one layer there is one k_scale and one v_scale, of all heads.
#pragma once
#include "ops/backend.h"
#include "ops/batch.h"
#include "tensor/tensor_view.h"

namespace mettle {

enum class CacheFormat : uint8_t { kActivation, kE4M3 };  // kActivation: the dtype of the activations
std::string_view name_of(CacheFormat format);             // activation, fp8_e4m3

struct AttentionProblem {
  int hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;  // heads on this rank
  int rotary_dim = 0;                                     // leading dims of a head that are rotated; even
  bool gate = false;                                      // output gate
  bool qk_norm = true;
  bool norm_plus_one = false;  // q/k norm weight is 1 + w
  float eps = 1e-6f;
  WeightFormat qkv_format = WeightFormat::kBf16, out_format = WeightFormat::kBf16;
  Activation activation = Activation::kBf16;
  CacheFormat cache = CacheFormat::kActivation;
  int block_size = 16;
  int qkv_rows() const { return (heads * (gate ? 2 : 1) + 2 * kv_heads) * head_dim; }
  DType cache_dtype() const { return cache == CacheFormat::kE4M3 ? DType::kE4M3 : dtype_of(activation); }
  std::string text() const;
  bool operator==(const AttentionProblem&) const = default;
};

struct RawAttention {
  RawSegments qkv;                    // [qkv_rows, hidden]
  RawSegments out;                    // [hidden, heads * head_dim]
  std::vector<float> q_norm, k_norm;  // [head_dim]; empty without qk_norm
  std::vector<float> inv_freq;        // [rotary_dim / 2]
  float k_scale = 1, v_scale = 1;     // of an E4M3 cache, else 1
};
struct AttentionWeights {
  PackedMatrix qkv, out;
  FloatArray q_norm, k_norm, inv_freq;
  float k_scale = 1, v_scale = 1;
};
AttentionWeights pack_attention(Layout layout, const RawAttention& raw, ThreadTeam* team = nullptr);
void place_attention(AttentionWeights& weights, Place& place);

struct AttentionArgs {
  AttentionProblem problem;
  const Batch* batch = nullptr;
  TensorView x;  // [rows, hidden]
  const AttentionWeights* weights = nullptr;
  TensorView k_cache;  // [blocks, block_size, kv_heads, head_dim] cache_dtype(); rows of this step are written
  TensorView v_cache;
  TensorView partial;  // out [rows, hidden] f32
  Workspace ws;
};

struct AttentionOp {
  static constexpr std::string_view kName = "attention";
  using Problem = AttentionProblem;
  using Args = AttentionArgs;
};
void check_args(const AttentionArgs& args);

}  // namespace mettle
