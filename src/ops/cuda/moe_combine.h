// Ends of moe that all its CUDA backends share: SwiGLU of a shared expert that stands alone, and the weighted sum.
#pragma once
#include <cstdint>

struct CUstream_st;

namespace mettle::cuda {

// h [rows, width] bf16 of gate_up [rows, 2 * width] float32 in packed order (8 of gate, then the 8 of up that belong).
void moe_swiglu(const float* gate_up, int rows, int width, uint16_t* h, CUstream_st* stream);

struct MoeCombineArgs {
  int rows = 0, hidden = 0, top_k = 0;
  bool has_shared = false;
  const float* weights = nullptr;       // [rows, top_k]
  const int32_t* position = nullptr;    // [rows, top_k]: row of products; -1: padding, adds nothing
  const float* shared_scale = nullptr;  // [rows]
  const float* products = nullptr;      // [rows * top_k (+ rows of the shared expert), hidden]
  float* partial = nullptr;             // out [rows, hidden]
};
void moe_combine(const MoeCombineArgs& args, CUstream_st* stream);

#if defined(__CUDACC__)
// One output: the choices of a row in their order, the shared expert last (shared_position < 0: none).
struct Combination {
  const float* weights;
  const int32_t* position;
  int top_k, shared_position;
  float shared_scale;
};
__device__ __forceinline__ float combine(const Combination& c, const float* products, int stride) {
  constexpr int kAtOnce = 8;  // loads in flight
  float sum = 0;
  for (int first = 0; first < c.top_k; first += kAtOnce) {
    float weight[kAtOnce], product[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int k = first + u, at = k < c.top_k ? c.position[k] : -1;
      weight[u] = at < 0 ? 0.f : c.weights[k];
      product[u] = at < 0 ? 0.f : products[int64_t{at} * stride];
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) sum += weight[u] * product[u];
  }
  if (c.shared_position >= 0) sum += c.shared_scale * products[int64_t{c.shared_position} * stride];
  return sum;
}
#endif

}  // namespace mettle::cuda
