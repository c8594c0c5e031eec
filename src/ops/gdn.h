// gdn: Gated DeltaNet. Projections, causal depthwise convolution of width 4 with SiLU, L2 norm of q and k, gates, the
// delta rule on the recurrent state, gated RMSNorm, output projection. Formulas: Qwen3.5-MoE (docs/ops.md).
//   rows of qkv: [q: key_heads * dk | k: key_heads * dk | v: value_heads * dv];  z [value_heads * dv];  ba: [b | a]
//   heads each c_t = silu(sum_j conv[ch, j] qkv_{t-3+j});  q, k /= sqrt(sum^2 + 1e-6);  q *= dk^-0.5 beta = sigmoid(b);
//   g = -exp(a_log) softplus(a + dt_bias);  value head j uses key head j / (value_heads / key_heads) S <- exp(g) S;  u
//   = beta (v - S^T k);  S <- S + k u^T;  o = S^T q;  y = norm(o) * w * silu(z) per head
// With several ranks each holds some key heads and their value heads; partial is the rank's share.
#pragma once
#include "ops/backend.h"
#include "ops/batch.h"
#include "tensor/tensor_view.h"

namespace mettle {

struct GdnProblem {
  int hidden = 0, key_heads = 0, value_heads = 0, dk = 0, dv = 0;  // heads on this rank
  int conv = 4;
  float eps = 1e-6f;                             // of the gated norm
  WeightFormat in_format = WeightFormat::kBf16;  // qkv and z
  WeightFormat ba_format = WeightFormat::kBf16;
  WeightFormat out_format = WeightFormat::kBf16;
  Activation activation = Activation::kBf16;
  int channels() const { return 2 * key_heads * dk + value_heads * dv; }
  std::string text() const;
  bool operator==(const GdnProblem&) const = default;
};

struct RawGdn {
  RawSegments qkv;                    // [channels, hidden]
  RawSegments z;                      // [value_heads * dv, hidden]
  RawSegments ba;                     // [2 * value_heads, hidden]
  RawSegments out;                    // [hidden, value_heads * dv]
  std::vector<float> conv;            // [channels, 4]; column 3 multiplies the current row
  std::vector<float> a_log, dt_bias;  // [value_heads]
  std::vector<float> norm;            // [dv]
};
struct GdnWeights {
  PackedMatrix qkv, z, ba, out;
  FloatArray conv, a_log, dt_bias, norm;
};
GdnWeights pack_gdn(Layout layout, const RawGdn& raw, ThreadTeam* team = nullptr);
void place_gdn(GdnWeights& weights, Place& place);

struct GdnArgs {
  GdnProblem problem;
  const Batch* batch = nullptr;
  TensorView x;  // [rows, hidden]
  const GdnWeights* weights = nullptr;
  TensorView conv_state;  // [slots, channels, 3] f32: the last three rows before the convolution, oldest first
  TensorView state;       // [slots, value_heads, dk, dv] f32
  TensorView partial;     // out [rows, hidden] f32
  Workspace ws;
};

struct GdnOp {
  static constexpr std::string_view kName = "gdn";
  using Problem = GdnProblem;
  using Args = GdnArgs;
};
void check_args(const GdnArgs& args);

}  // namespace mettle
