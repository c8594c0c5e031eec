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
struct Combination {
  const float* weights;
  const int32_t* position;
  int top_k, shared_position;
  float shared_scale;
};
__device__ __forceinline__ void add_weighted(float& sum, float weight, float product) { sum += weight * product; }
__device__ __forceinline__ void add_weighted(float4& sum, float weight, const float4& product) {
  sum.x += weight * product.x, sum.y += weight * product.y, sum.z += weight * product.z, sum.w += weight * product.w;
}
// One output, or four side by side: the choices of a row in their order, the shared expert last (shared_position < 0:
// none). `stride`: from row to row of products, in units of T. No load hangs on a condition: all can be under way.
template <class T>
__device__ __forceinline__ T combine(const Combination& c, const T* products, int stride) {
  constexpr int kAtOnce = 8;
  const T shared = products[int64_t{max(c.shared_position, 0)} * stride];
  T sum = {};
  for (int first = 0; first < c.top_k; first += kAtOnce) {
    int at[kAtOnce];
    float weight[kAtOnce];
    T product[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) at[u] = c.position[min(first + u, c.top_k - 1)];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      weight[u] = c.weights[min(first + u, c.top_k - 1)];
      product[u] = products[int64_t{max(at[u], 0)} * stride];
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      if (at[u] >= 0 && first + u < c.top_k) add_weighted(sum, weight[u], product[u]);
  }
  if (c.shared_position >= 0) add_weighted(sum, c.shared_scale, shared);
  return sum;
}
#endif

}  // namespace mettle::cuda
